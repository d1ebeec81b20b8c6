-- Keys that are due, as the indexes of their shards have it.

-- The *limit* keys of all *indexes* that are most overdue, the most overdue first. Of each index a
-- fair part is read, and the next one only where that may not have been all there is to reap.
local function overdue(indexes, now, limit)
  local found, parts = {}, {}
  local size = math.min(limit, math.ceil(2 * limit / #indexes))
  for i, index in ipairs(indexes) do parts[i] = {index = index, read = 0} end
  while #parts > 0 do
    for _, part in ipairs(parts) do
      local rows = redis.call('ZRANGEBYSCORE', part.index, '-inf', integer(now), 'WITHSCORES',
        'LIMIT', part.read, size)
      for i = 1, #rows, 2 do
        part.last = {index = part.index, member = rows[i], at = tonumber(rows[i + 1])}
        found[#found + 1] = part.last
      end
      part.read, part.ends = part.read + size, #rows / 2 < size
    end
    table.sort(found, function(one, other) return one.at < other.at end)
    for i = #found, limit + 1, -1 do found[i] = nil end
    parts = keep_if(parts, function(part)
      if part.ends or part.read >= limit then return false end
      return #found < limit or part.last.at < found[limit].at
    end)
  end
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
