-- A key for which nobody gives up waiting, with one lease or one turn on which nothing is due: its
-- state is changed as it lies there, without the rules, which cost more than all else.

local function simple_state()
  local parts = unpack_state(redis.call('GET', STATE) or '')
  local due = parts and parts[5]
  local waited_for = parts and parts[6] and parts[3] > 0
  if waited_for and type(due) == 'table' and due[2] == false then return parts end
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
  parts[5] = parts[6] and {due, false} or due
  redis.call('SET', STATE, cmsgpack.pack(parts))
end
