-- Time has passed on all keys: reap those that are due, the most overdue first.
-- KEYS: the index of each shard; ARGV[2]: how many keys at most.
-- Returns {key, its wakes} for each, and after how long the next one is due.

local now = clock()
local swept = {}
for i, key in ipairs(overdue(KEYS, now, tonumber(ARGV[2]))) do
  turn_to(key.index, key.member)
  swept[i] = {key.member, reap_due(now)}
end
return {swept, next_due(KEYS, now)}
