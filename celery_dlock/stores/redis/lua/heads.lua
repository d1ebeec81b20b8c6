-- How many keys stand, each as an operation finds it: of a queue the head, and of that who still
-- waits; false for one that cannot be read. KEYS: the state and the queue of each; ARGV: now.
-- Nothing is changed.

local now = clock()

local function head(queue)
  local waiting = {}
  local rows = redis.call('ZRANGE', queue, 0, WINDOW - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local entry = read_member(rows[i], rows[i + 1])
    if not entry.expires or entry.expires > now then
      waiting[#waiting + 1] = to_row(entry, WAITING)
    end
  end
  return waiting
end

local function row(name, queue)
  local state = read_state(name)
  return {
    map(state.holders, to_row, HOLDER), map(state.grants, to_row, GRANT),
    state.queued and head(queue) or {}, state.parked, {}, state.paused,
  }
end

local found = {}
for i = 1, #KEYS, 2 do
  local readable, state = pcall(row, KEYS[i], KEYS[i + 1])
  found[#found + 1] = readable and state or false  -- one must not hide the others
end
return found
