-- Somebody else may have written into a state: so that no operation stumbles half way over a value
-- of another type, it is read as it was written, or not at all.

local function state_of(row)
  local due, patient = row[5], row[8]
  if type(row[3]) ~= 'number' or type(row[4]) ~= 'number' or type(row[6]) ~= 'boolean'
    or type(row[7]) ~= 'number' or due and type(due) ~= 'number'
    or patient and type(patient) ~= 'number' then
    error('this is no state')
  end
  local state = {
    packed = row.packed, holders = map(row[1], holder_of_row), grants = map(row[2], grant_of_row),
    parked = row[3], latest = row[4], due = due, queued = row[6], paused = row[7],
    patient = patient, cooling = {}, plain = #row == 8,
  }
  for i = 9, #row, 2 do
    if row[i] == 'cooling' then state.cooling = map(row[i + 1], cooling_of_row) end
    if row[i] == 'hold' then state.hold = hold_of_row(row[i + 1]) end
  end
  return state
end

local function read_state(name)
  local row = look_at_row(name)
  if not row.packed then return new_state() end
  local readable, state = pcall(state_of, row)
  return readable and state or error('this is not the state of a lock: ' .. name)
end

-- The state of the key, where a shortcut has looked at it: nil if it is not there or unreadable.
local known

local function look_at_state(row)
  local readable, state = pcall(state_of, row)
  known = readable and state or nil
  return known
end

-- Whether there is one holder or turn, or none, and nothing that shortcuts do not know.
local function is_plain(state, holders, grants)
  if not state or not state.plain or #state.holders ~= holders or #state.grants ~= grants then
    return false
  end
  return (holders == 0 or state.holders[1].plain) and (grants == 0 or state.grants[1].plain)
end
