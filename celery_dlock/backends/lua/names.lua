-- What a script works on. KEYS[1] is the state of a key, from which all other names follow; a
-- cluster is told those, too, so that it refuses while a slot is being moved.
-- ARGV[1]: now, or empty for the server's time. ARGV[2]: the asking task, if there is one.

local STATE = KEYS[1]
local BASE = string.sub(STATE, 1, -6)
local SHARD = string.match(STATE, '^[^}]*}:')
local LOST, TOKEN = BASE .. 'lost', BASE .. 'token'
local DONE = BASE .. 'done:' .. (ARGV[2] or '')
local DAY = 86400000000
local TOKEN_STAYS = 7 * DAY
-- A clock that is handed in (tests) runs apart from the one that ends the keys of Redis.
local DRIVEN = ARGV[1] ~= ''

local function clock()
  if DRIVEN then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Concatenation rounds: so many digits are not a number to Lua.
local function integer(number)
  return string.format('%.0f', number)
end

local function milliseconds(duration)
  return integer(math.ceil(duration / 1000))
end

local function mark_done(ttl, now)
  local stays = DRIVEN and math.max(ttl, DAY) or ttl
  redis.call('SET', DONE, integer(now + ttl), 'PX', milliseconds(stays))
end
