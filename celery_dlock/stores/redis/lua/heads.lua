-- How many keys stand, each as an operation finds it: of a queue the head, and of that who still
-- waits; false for one that cannot be read. KEYS: the state and the queue of each; ARGV: now.
-- Nothing is changed.

local now = clock()

local function head(queue)
  local waiting = {}
  local rows = redis.call('ZRANGE', queue, 0, WINDOW - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local entry = read_member(rows[i], rows[i + 1])
    if not entry.expires or entry.expires > now then waiting[#waiting + 1] = entry end
  end
  return waiting
end

local function found_at(name, queue)
  local state = read_state(name)
  return to_reply(state, state.queued and head(queue) or {}, {})
end

local found = {}
for i = 1, #KEYS, 2 do
  local readable, state = pcall(found_at, KEYS[i], KEYS[i + 1])
  found[#found + 1] = readable and state or false  -- one must not hide the others
end
return found
