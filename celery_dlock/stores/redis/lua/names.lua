-- What a script works on. KEYS[1] is the state of a key, from which all other names follow; a
-- cluster is told those, too, so that it refuses while a slot is being moved.
-- ARGV[2]: the asking task, if there is one.

local STATE = KEYS[1]
local BASE = string.sub(STATE, 1, -6)
local SHARD = string.match(STATE, '^[^}]*}:')
local LOST, TOKEN = BASE .. 'lost', BASE .. 'token'
local DONE = BASE .. 'done:' .. (ARGV[2] or '')
local TOKEN_STAYS = 7 * DAY

local function mark_done(ttl, now)
  local stays = DRIVEN and math.max(ttl, DAY) or ttl
  redis.call('SET', DONE, integer(now + ttl), 'PX', milliseconds(stays))
end

local function read_number(name)
  return tonumber(redis.call('GET', name) or 0) or error('this is not a number: ' .. name)
end
