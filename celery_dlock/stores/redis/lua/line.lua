-- A state and an entry of the queue, as they lie in Redis: see key.lua. Somebody else may have
-- written to them: so that no operation stumbles half way over a value of another type, they are
-- read as they were written, or not at all.

local QUEUE, ENTRIES = BASE .. 'queue', BASE .. 'entries'
local DUE, DEAD = SHARD .. 'due', SHARD .. 'dead'

local function member()
  return string.sub(STATE, #DUE - 2, -7)
end

-- Of which type each field is: a number 'or none', or false for any.
local NONE = 'or none'
local HOLDER_TYPES = {
  'string', 'string', 'string', 'number', 'number', 'number', 'number', 'number', 'number',
  false, false, NONE,
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

local function unpack_state(packed)
  local readable, parts = pcall(cmsgpack.unpack, packed)
  local is_state = readable and type(parts) == 'table' and #parts == 7 and are(parts, STATE_TYPES)
    and all_are(parts[1], HOLDER_TYPES) and all_are(parts[2], GRANT_TYPES)
  return is_state and parts
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
