-- Which keys of a shard are due, for scripts that name all that they touch: see reap_overdue.lua.
-- KEYS: the index; ARGV[2]: how many keys at most. Returns {since when, key} for each, and after
-- how long the next one is due.

local now = clock()
local function row(key) return {integer(key.at), key.member} end
return {map(overdue(KEYS, now, tonumber(ARGV[2])), row), next_due(KEYS, now)}
