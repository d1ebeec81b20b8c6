-- Time has passed on all keys: reap those that are due, the most overdue first.
-- KEYS: the index of each shard; ARGV[2]: how many keys at most.
-- Returns {key, its wakes} for each, and after how long the next one is due.

local now = clock()

local function overdue()
  local found = {}
  for _, index in ipairs(KEYS) do
    local rows = redis.call(
      'ZRANGEBYSCORE', index, '-inf', integer(now), 'WITHSCORES', 'LIMIT', 0, ARGV[2])
    for i = 1, #rows, 2 do
      found[#found + 1] = {index = index, member = rows[i], at = tonumber(rows[i + 1])}
    end
  end
  table.sort(found, function(one, other) return one.at < other.at end)
  return found
end

-- One key that cannot be read must not keep the others waiting.
local function reap(key)
  turn_to(key.index, key.member)
  redis.call('ZREM', key.index, key.member)
  local readable, state = pcall(load, nil, now)
  if not readable then
    redis.call('ZADD', key.index, integer(now + CALL_AGAIN_LAST), key.member)
    return {}
  end
  state.due = false
  expire(state, now)
  return commit(state, now)
end

local function next_due()
  local first
  for _, index in ipairs(KEYS) do
    local at = tonumber(redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2])
    if at and (not first or at < first) then first = at end
  end
  return first and math.max(0, first - now)
end

local swept = {}
for i, key in ipairs(overdue()) do
  if i > tonumber(ARGV[2]) then break end
  swept[i] = {key.member, reap(key)}
end
return {swept, next_due() or false}
