-- Keys that are due, as the indexes of their shards have it.

-- Up to *limit* of each index, the most overdue first.
local function overdue(indexes, now, limit)
  local found = {}
  for _, index in ipairs(indexes) do
    local rows = redis.call(
      'ZRANGEBYSCORE', index, '-inf', integer(now), 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #rows, 2 do
      found[#found + 1] = {index = index, member = rows[i], at = tonumber(rows[i + 1])}
    end
  end
  table.sort(found, function(one, other) return one.at < other.at end)
  return found
end

-- In how long the next key of *indexes* is due, false for never.
local function next_due(indexes, now)
  local first
  for _, index in ipairs(indexes) do
    local at = tonumber(redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')[2])
    if at and (not first or at < first) then first = at end
  end
  return first and math.max(0, first - now) or false
end

local function reap_at(now)
  local state = load_state(nil, now)
  if not state.queued and redis.call('EXISTS', QUEUE) == 1 then  -- the state alone was evicted
    state.queued, state.seen = true, false
  end
  look(state)
  state.due = false
  expire(state, now)
  return commit(state, now)
end

-- One key that cannot be read must not keep the others waiting.
local function reap_due(now)
  redis.call('ZREM', DUE, member())
  local readable, wakes = pcall(reap_at, now)
  if readable then return wakes end
  redis.call('ZADD', DUE, integer(now + WAKE_AGAIN_LAST), member())
  return {}
end
