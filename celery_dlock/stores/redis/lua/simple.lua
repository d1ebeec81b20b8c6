-- A key for which others wait, with one lease or one turn on which nothing is due, and nothing else
-- before: its state is changed as it lies there, without the rules, which cost more than all else.

local function simple_state()
  known = {packed = redis.call('GET', STATE)}
  known.parts = known.packed and unpack_state(known.packed)
  local parts = known.parts
  local waited_for = parts and parts[6] and parts[3] > 0 and type(parts[5]) == 'table'
  local patient = waited_for and parts[5][2]
  if waited_for and (patient == false or type(patient) == 'number') then return parts end
end

-- Whether nobody who waits gives up before *instant*.
local function are_patient(parts, instant)
  local patient = parts[5][2]
  return not patient or patient + parts[7] > instant
end

local function is_single(mode, limit)
  return mode == EXCLUSIVE and limit == 1
end

-- Nothing is known of the task but what the state says.
local function is_new(task)
  return redis.call('EXISTS', DONE) == 0 and redis.call('HEXISTS', LOST, task) == 0
end

local function write_simple(parts, due)
  if due ~= parts[5][1] then redis.call('ZADD', DUE, integer(due), member()) end
  parts[5] = parts[6] and {due, parts[5][2]} or due
  redis.call('SET', STATE, cmsgpack.pack(parts))
end
