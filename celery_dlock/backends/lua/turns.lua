-- Time passes, and whose turn it is: celery_dlock/core/turns.py, under the same names.

local function call(grant, now)
  local wait = math.min(CALL_AGAIN_FIRST * 2 ^ math.min(grant.calls, 16), CALL_AGAIN_LAST)
  grant.calls, grant.due, grant.taker = grant.calls + 1, now + wait, ''
end

-- Every operation ends with this: end who waited too long, call who is next or overdue.
local function settle(state, now)
  local window = {unpack(state.waiting, 1, math.min(WINDOW, #state.waiting))}
  window = keep_if(window, function(entry) return not find(state.holders, entry.task) end)
  for _, entry in ipairs(window) do
    if entry.gives_up and entry.gives_up <= now then to_grant(state, entry, now, TIMED_OUT) end
  end
  for _, entry in ipairs(window) do
    if backlog(state) == 0 then break end  -- places alone reserve nothing
    if find(state.waiting, entry.task) then
      if not free(state, entry.mode, entry.limit) then break end
      to_grant(state, entry, now)
    end
  end
  local called = keep_if(state.grants, function(grant) return grant.parked and grant.due <= now end)
  for _, grant in ipairs(called) do call(grant, now) end
  return called
end

-- What settle() would make of the state.
local function supposing(state, now)
  local later = {
    supposed = true, holders = state.holders, waiting = {unpack(state.waiting)},
    grants = map(map(state.grants, to_row, GRANT), from_row, GRANT), parked = state.parked,
  }
  settle(later, now)
  return later
end

local function expire(state, now)
  state.holders = keep_if(state.holders, function(holder)
    if holder.frees > now then return true end
    count_lost(holder.task, now)
  end)
  state.grants = keep_if(state.grants, function(grant) return grant.parked or grant.due > now end)
end

-- When a sweep has something to do, should nobody come before; nil for never.
local function due(state)
  local first
  local function at(instant)
    if instant and (not first or instant < first) then first = instant end
  end
  local parked = state.parked > 0
  for _, grant in ipairs(state.grants) do parked = parked or grant.parked end
  if not parked then return nil end
  for _, grant in ipairs(state.grants) do at(grant.due) end
  if state.parked == 0 then return first end
  for _, holder in ipairs(state.holders) do at(holder.frees) end
  for i = 1, math.min(WINDOW, #state.waiting) do
    at(state.waiting[i].gives_up)
  end
  return first or 0
end

-- The end of each operation: its state is written, its wakes get their messages.
local function commit(state, now)
  local called = settle(state, now)
  save(state, due(state), now)
  local wakes = {}
  for i, grant in ipairs(called) do
    wakes[i] = {grant.task, message_of(grant.task), grant.ending}
  end
  return wakes
end
