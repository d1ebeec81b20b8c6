-- A key as it lies there, with a part of its queue; nothing is changed.
-- ARGV: now, the first and the last position of the part, and '1' if lost runs are asked for, too.

local now = clock()
local state = read_state(STATE)
local waiting = {}
local rows = redis.call('ZRANGE', QUEUE, ARGV[2], ARGV[3], 'WITHSCORES')
for i = 1, #rows, 2 do
  waiting[#waiting + 1] = read_member(rows[i], rows[i + 1])
end
local lost = {}
local counts = ARGV[4] == '1' and redis.call('HGETALL', LOST) or {}
for i = 1, #counts, 2 do
  local count = remembered(counts[i + 1], now)
  if count > 0 then lost[#lost + 1] = {counts[i], count} end
end
return to_reply(state, waiting, lost)
