-- The rules of celery_dlock/core/machine.py, function by function and under the same names.
-- A state is changed in place; what concerns the queue is written at once, the rest by save().

local function find(list, task)
  for i, item in ipairs(list) do
    if item.task == task then return item, i end
  end
end

local function holder_of(state, claim)
  for i, holder in ipairs(state.holders) do
    if holder.task == claim.task and holder.nonce == claim.nonce then return holder, i end
  end
end

local function keep_if(list, condition)
  local kept = {}
  for _, item in ipairs(list) do
    if condition(item) then kept[#kept + 1] = item end
  end
  return kept
end

local function take_out(state, entry)
  local _, i = find(state.waiting, entry.task)
  table.remove(state.waiting, i)
  if not entry.lapses then state.parked = state.parked - 1 end
end

local function drop_entry(state, task)
  local entry = find(state.waiting, task)
  if not entry then return end
  take_out(state, entry)
  discard(entry)
end

local function insert(state, claim, now, rank, lapses, message)
  local entry = {
    task = claim.task, mode = claim.mode, limit = claim.limit,
    rank = rank, arrived = now, lapses = lapses,
  }
  enqueue(entry, message)
  local i = 1
  while state.waiting[i] and state.waiting[i].rank < rank do i = i + 1 end
  table.insert(state.waiting, i, entry)
  if lapses then
    state.latest = math.max(state.latest, lapses)
  else
    state.parked = state.parked + 1
  end
  state.queued = true
  return entry
end

local function drop_grant(state, task)
  local grant = find(state.grants, task)
  if not grant then return end
  state.grants = keep_if(state.grants, function(g) return g.task ~= task end)
  if grant.parked then redis.call('HDEL', ENTRIES, task) end
end

local function leave_queue(state, task)
  drop_entry(state, task)
  drop_grant(state, task)
end

local function forget(state, task)
  leave_queue(state, task)
  redis.call('HDEL', LOST, task)
end

local function kept(state, task)
  local entry, grant = find(state.waiting, task), find(state.grants, task)
  return state.done or (entry and not entry.lapses) or (grant and grant.parked)
end

local function carried(state, task)
  return kept(state, task) or find(state.holders, task) ~= nil
end

-- Whether one more may hold the key. After a change of the limit the smaller one counts.
local function free(state, mode, limit)
  for _, list in ipairs({state.holders, state.grants}) do
    for _, taken in ipairs(list) do
      if taken.mode ~= mode then return false end
      limit = math.min(limit, taken.limit)
    end
  end
  return mode == SHARED or #state.holders + #state.grants < limit
end

local function busy(state, now)
  local holder
  for _, other in ipairs(state.holders) do
    if not holder or other.expires < holder.expires then holder = other end
  end
  local left = holder and math.max(0, holder.expires - now) or 0
  return {'busy', holder and to_row(holder, HOLDER) or false, left, state.parked}
end

local function free_slot(state)
  local taken = {}
  for _, holder in ipairs(state.holders) do taken[holder.slot] = true end
  local slot = 0
  while taken[slot] do slot = slot + 1 end
  return slot
end

local function hold(state, claim, now)
  local exclusive = claim.mode == EXCLUSIVE
  local slot = exclusive and free_slot(state) or 0
  local token = exclusive and next_token(now) or 0
  local expires = now + claim.ttl
  state.holders[#state.holders + 1] = {
    task = claim.task, nonce = claim.nonce, mode = claim.mode, limit = claim.limit,
    slot = slot, token = token, since = now,
    expires = expires, frees = expires + claim.lock_delay,
  }
  return {'run', slot, token}
end

local function extend(holder, claim, now)
  holder.expires = math.max(holder.expires, now + claim.ttl)
  holder.frees = holder.expires + claim.lock_delay
end

local function may_start(state, claim, entry, started)
  if not free(state, claim.mode, claim.limit) then return false end
  if started then return true end
  if state.parked > 0 then return false end
  if claim.mode == EXCLUSIVE then return true end
  local rank = entry and entry.rank or state.last + 1
  for _, other in ipairs(state.waiting) do
    if other.mode == EXCLUSIVE and other.rank < rank then return false end
  end
  return true
end

local function start_or_wait(state, claim, entry, now)
  local started = lost_runs(claim.task, now) > 0
  if may_start(state, claim, entry, started) then
    drop_entry(state, claim.task)
    return hold(state, claim, now)
  end
  if claim.wait == 'not' then return busy(state, now) end
  local rank = entry and entry.rank or (started and state.first - 1) or state.last + 1
  drop_entry(state, claim.task)
  if claim.wait == 'queue' then
    insert(state, claim, now, rank, nil, claim.message)
    return {'park'}
  end
  insert(state, claim, now, rank, now + claim.patience, '')
  return busy(state, now)
end

local function take_turn(state, claim, grant, now)
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

-- The tasks whose messages are to be published now; every operation ends with this.
local function grant_next(state, now)
  local wakes = {}
  local head = {unpack(state.waiting, 1, math.min(WINDOW, #state.waiting))}
  for _, entry in ipairs(head) do
    if state.parked == 0 then break end  -- places alone reserve nothing
    if not find(state.holders, entry.task) then  -- a shadow waits for its running copy to go
      if not free(state, entry.mode, entry.limit) then break end
      local parked = not entry.lapses
      take_out(state, entry)
      if parked then
        unqueue(entry)
        wakes[#wakes + 1] = entry.task
      else
        discard(entry)
      end
      state.grants[#state.grants + 1] = {
        task = entry.task, mode = entry.mode, limit = entry.limit,
        parked = parked, calls = 1, due = entry.lapses or now + CALL_AGAIN_FIRST,
      }
    end
  end
  return wakes
end

local function call_again(grant, now)
  local wait = math.min(CALL_AGAIN_FIRST * 2 ^ math.min(grant.calls, 16), CALL_AGAIN_LAST)
  grant.calls, grant.due = grant.calls + 1, now + wait
end

local function with_messages(tasks)
  local wakes = {}
  for i, task in ipairs(tasks) do wakes[i] = {task, message_of(task)} end
  return wakes
end
