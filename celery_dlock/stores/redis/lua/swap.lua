-- What stands under a name for a while changes, if it is what the caller believes.
-- KEYS[1]: where. ARGV: now, what it was and what it becomes (each empty for nothing), and for how
-- long that stays. Returns what stands there now. It is kept behind the instant of its end.

local ends, stands = string.match(redis.call('GET', KEYS[1]) or '0 ', '^(%d+) (.*)$')
if not ends then error('nothing of ours stands here: ' .. KEYS[1]) end
local now, was, becomes, stays = clock(), ARGV[2], ARGV[3], tonumber(ARGV[4])
if tonumber(ends) <= now then stands = '' end
if stands ~= was then return stands end
if becomes == '' then
  redis.call('DEL', KEYS[1])
else
  local lasts = DRIVEN and math.max(stays, DAY) or stays
  redis.call('SET', KEYS[1], integer(now + stays) .. ' ' .. becomes, 'PX', milliseconds(lasts))
end
return becomes
