-- A state and an entry of the queue, as they lie in Redis: see key.lua. Somebody else may have
-- written to them: so that no operation stumbles half way over a value of another type, they are
-- read as they were written, or not at all.

local QUEUE, ENTRIES = BASE .. 'queue', BASE .. 'entries'
local DUE, DEAD, DIED = SHARD .. 'due', SHARD .. 'dead', SHARD .. 'died'
local TASKS = SHARD .. 'tasks'

local function member()
  return string.sub(STATE, #DUE - 2, -7)
end

local function task_id_of(task)
  return string.match(task, '^(.*):[^:]*:[^:]*$') or string.match(task, '^(.*):[^:]*$') or task
end

-- The index of tasks: an item for each message of a task id, parked ('p') or dead ('d'), with how
-- long the rest of the task's identity is, that rest and the key. Most ids have one item.
local list_message, unlist_message
do
  local function item_of(mark, task, id)
    return mark .. #task - #id .. string.sub(task, #id + 1) .. member()
  end

  local function without(items, item)
    local others, at = '', 1
    while at <= #items do
      local length = string.match(items, '^%a(%d+)', at)
      local ends = length and string.find(items, '}', at + 1 + #length + length, true)
      if not ends then break end  -- nothing of ours
      local other = string.sub(items, at, ends)
      if other ~= item then others = others .. other end
      at = ends + 1
    end
    return others
  end

  function list_message(mark, task)
    local id = task_id_of(task)
    local item = item_of(mark, task, id)
    if redis.call('HSETNX', TASKS, id, item) == 1 then return end
    local items = redis.call('HGET', TASKS, id)
    if items ~= item then redis.call('HSET', TASKS, id, without(items, item) .. item) end
  end

  function unlist_message(mark, task)
    local id = task_id_of(task)
    local items = redis.call('HGET', TASKS, id)
    local others = items and without(items, item_of(mark, task, id))
    if others == '' then
      redis.call('HDEL', TASKS, id)
    elseif others and others ~= items then
      redis.call('HSET', TASKS, id, others)
    end
  end
end

-- The message of a task that waits, or was woken, with the key.
local function put_message(task, packed)
  redis.call('HSET', ENTRIES, task, packed)
  list_message('p', task)
end

local function drop_message(task)
  redis.call('HDEL', ENTRIES, task)
  unlist_message('p', task)
end

-- Of which type each field is: a number 'or none', or false for any.
local unpack_state
do
  local NONE = 'or none'
  local HOLDER_TYPES = {
    'string', 'string', 'string', 'number', 'number', 'number', 'number', 'number', false, false,
    NONE,
  }
  local GRANT_TYPES = {
    'string', 'string', 'number', 'boolean', 'number', 'number', false, 'string', NONE, NONE,
    'boolean', false, false, NONE,
  }
  local STATE_TYPES = {'table', 'table', 'number', 'number', false, 'boolean', 'number'}

  local function are(values, types)
    for i, kind in ipairs(types) do
      local value = values[i]
      if kind == NONE then kind, value = 'number', value or 0 end
      if kind and type(value) ~= kind then return false end
    end
    return true
  end

  local function all_are(rows, types)
    for _, row in ipairs(rows) do
      if type(row) ~= 'table' or not are(row, types) then return false end
    end
    return true
  end

  function unpack_state(packed)
    local readable, parts = pcall(cmsgpack.unpack, packed)
    local is_state = readable and type(parts) == 'table' and #parts == 7 and are(parts, STATE_TYPES)
      and all_are(parts[1], HOLDER_TYPES) and all_are(parts[2], GRANT_TYPES)
    return is_state and parts
  end
end

-- The state of the key, if it was looked at before the rules are.
local known

local function is_head(mode, limit, arrived, expires, gives_up)
  return type(mode) == 'string' and type(limit) == 'number' and type(arrived) == 'number'
    and type(expires or 0) == 'number' and type(gives_up or 0) == 'number'
end

-- A whole window of them for some operations: what is asked of an entry here makes no table.
local function unpack_head(packed)
  local offset, mode, limit, arrived, expires, gives_up, ordered, newer =
    cmsgpack.unpack_limit(packed, 7)
  local rest = offset < 0 and '' or string.sub(packed, offset + 1)
  if not is_head(mode, limit, arrived, expires, gives_up) then
    error('this is not the head of an entry')
  end
  local entry = {
    mode = mode, limit = limit, arrived = arrived, expires = expires, gives_up = gives_up,
    ordered = ordered, makes_room_for = newer,
  }
  return entry, rest
end

-- Whose message cannot be read is woken all the same: so somebody notices.
local function message_of(task)
  local packed = redis.call('HGET', ENTRIES, task)
  local readable, _, message = pcall(unpack_head, packed)
  return readable and message or ''
end

-- The earlier of two ends of patience, of which either may be none.
local function earlier(one, other)
  return one and other and math.min(one, other) or one or other or false
end
