-- A plain key for which others wait, with one lease or one turn on which nothing is due, and
-- nothing else before: its state is changed without the rules, which cost more than all else.

local function is_simple(state, holders, grants)
  return is_plain(state, holders, grants) and state.queued and state.parked > 0
end

-- Whether nobody who waits gives up before *instant*.
local function are_patient(state, instant)
  return not state.patient or state.patient + state.paused > instant
end

-- Nothing is known of the task but what the state says.
local function is_new(task)
  return redis.call('EXISTS', DONE) == 0 and redis.call('HEXISTS', LOST, task) == 0
end

local function write_simple(state, due)
  if due ~= state.due then redis.call('ZADD', DUE, integer(due), member()) end
  state.due = due
  redis.call('SET', STATE, pack_state(state))
end
