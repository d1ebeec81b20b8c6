-- The rules of celery_dlock/core/machine.py, function by function and under the same names.

-- The parked tasks that are loaded and do not run meanwhile.
local function messages(state)
  return keep_if(state.waiting, function(entry)
    return not entry.lapses and not find(state.holders, entry.task)
  end)
end

local function full(state, claim)
  if claim.max_waiting == 0 then return false end
  local loaded = #keep_if(state.waiting, function(entry) return not entry.lapses end)
  return state.parked - loaded + #messages(state) >= claim.max_waiting
end

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
    if state.parked == 0 then break end  -- places alone reserve nothing
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

local function may_start(state, claim, entry, started)
  if not free(state, claim.mode, claim.limit) then return false end
  if state.parked > 0 then return started() end
  if claim.mode == EXCLUSIVE then return true end
  local rank = entry and entry.rank or state.last + 1
  for _, other in ipairs(state.waiting) do
    if other.mode == EXCLUSIVE and other.rank < rank then return started() end
  end
  return true
end

local function make_room(state, claim, now)
  if claim.max_waiting == 0 then return true end
  local later = supposing(state, now)  -- who is called as this operation ends has made room
  if not full(later, claim) then return true end
  local oldest = claim.drop_oldest and messages(later)[1]
  if oldest then to_grant(state, oldest, now, DROPPED) end
  return oldest
end

local function start_or_wait(state, claim, entry, now)
  -- Asked for only where it makes a difference: on a free key it makes none.
  local function started() return lost_runs(claim.task, now) > 0 end
  if may_start(state, claim, entry, started) then
    drop_entry(state, claim.task)
    return hold(state, claim, now)
  end
  if claim.wait == 'not' then return busy(state, now) end
  local before = started()
  local rank = entry and entry.rank or (before and state.first - 1) or state.last + 1
  drop_entry(state, claim.task)
  if claim.wait == 'place' then
    insert(state, claim, now, rank, now + claim.patience, '')
    return busy(state, now)
  end
  if not before and not make_room(state, claim, now) then return busy(state, now, true) end
  insert(state, claim, now, rank, nil, claim.message)
  return {'park'}
end

local function take_turn(state, claim, grant, now)
  if grant.ending then
    if grant.taker ~= '' and grant.taker ~= claim.nonce then return {'drop', 'waiting'} end
    grant.taker, grant.due = claim.nonce, now + claim.ttl
    return {'end', grant.ending}
  end
  local message = grant.parked and message_of(claim.task)
  drop_grant(state, claim.task)
  if free(state, claim.mode, claim.limit) then return hold(state, claim, now) end
  -- The limit or the mode has changed since the turn was called: back to the head.
  if grant.parked then
    insert(state, claim, now, state.first - 1, nil, message)
    return {'park'}
  end
  local entry = insert(state, claim, now, state.first - 1, grant.due, '')
  return start_or_wait(state, claim, entry, now)
end

local function answer(state, claim, now)
  local mine = holder_of(state, claim)
  if mine and mine.expires > now then
    extend(mine, claim, now)
    return {'run', mine.slot, mine.token}
  end
  if state.done then
    forget(state, claim.task)
    return {'drop', 'done'}
  end
  local grant = find(state.grants, claim.task)
  if grant then return take_turn(state, claim, grant, now) end
  local entry = find(state.waiting, claim.task)
  if entry and not entry.lapses then return {'drop', 'waiting'} end
  local running = find(state.holders, claim.task)
  if not running then return start_or_wait(state, claim, entry, now) end
  if claim.wait ~= 'queue' then
    return {'same', to_row(running, HOLDER), math.max(0, running.expires - now)}
  end
  -- A shadow: this delivery may be the only copy that survives the first one's death.
  drop_entry(state, claim.task)
  insert(state, claim, now, state.first - 1, nil, claim.message)
  return {'park'}
end

local function conclude(state, claim, outcome, held, now)
  if outcome == 'done' then
    forget(state, claim.task)
    if claim.done_ttl > 0 and not state.done then
      mark_done(claim.done_ttl, now)
      state.done = true
    end
  elseif outcome == 'over' then
    forget(state, claim.task)
  elseif outcome == 'repeat' then
    if claim.wait == 'queue' and not kept(state, claim.task) then
      leave_queue(state, claim.task)
      insert(state, claim, now, state.first - 1, nil, claim.message)
    end
  elseif held then
    count_lost(claim.task, now)
  end
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
    local entry = state.waiting[i]
    if not find(state.holders, entry.task) then at(entry.gives_up) end
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
