-- What time it is, in microseconds. ARGV[1]: now, or empty for the server's time.

local DAY = 86400000000
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
