-- Notes beside a key. KEYS[1]: their hash, token -> the largest that has written, :name -> a note.
-- ARGV: the token, then the names of notes to delete and a '', then names and texts to write;
-- each name with its colon. Returns 1, or 0 when a larger token has written.

-- As text: to Lua numbers above 2^53 are no longer apart.
local function smaller(one, other)
  if #one ~= #other then return #one < #other end
  return one < other
end

local bar = redis.call('HGET', KEYS[1], 'token')
if bar and smaller(ARGV[1], bar) then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
local at = 2
while ARGV[at] ~= '' do
  redis.call('HDEL', KEYS[1], ARGV[at])
  at = at + 1
end
for i = at + 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
