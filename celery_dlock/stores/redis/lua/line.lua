-- An entry of the queue and its message, as they lie in Redis: see key.lua.

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

local function is_head(mode, arrived, expires, gives_up, name, number, keyset)
  return type(mode) == 'string' and type(arrived) == 'number'
    and type(expires or 0) == 'number' and type(gives_up or 0) == 'number'
    and type(name) == 'string' and type(number) == 'number' and type(keyset) == 'string'
end

-- Of an entry all but its rank and its task, which comes behind. What is asked of one here makes no
-- table: some operations read a whole window of them.
local function pack_head(entry)
  local others = waiting_row(entry, {})
  return cmsgpack.pack(
    entry.mode, entry.arrived, entry.expires, entry.gives_up, entry.ordered, entry.name,
    entry.entry, entry.keyset, others[1] and others or nil)
end

local function unpack_head(packed)
  local offset, mode, arrived, expires, gives_up, ordered, name, number, keyset, others =
    cmsgpack.unpack_limit(packed, 9)
  local rest = offset < 0 and '' or string.sub(packed, offset + 1)
  if not is_head(mode, arrived, expires, gives_up, name, number, keyset) then
    error('this is not the head of an entry')
  end
  local entry = {
    mode = mode, arrived = arrived, expires = expires, gives_up = gives_up,
    ordered = ordered, name = name, entry = number, keyset = keyset, plain = not others,
  }
  return others and waiting_of_row(others, entry) or entry, rest
end

local function enqueue(entry, message)
  local head = pack_head(entry)
  if entry.expires then
    redis.call('HSET', ENTRIES, entry.task, head .. message)
  else
    put_message(entry.task, head .. message)
  end
  redis.call('ZADD', QUEUE, integer(entry.rank), head .. entry.task)
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
