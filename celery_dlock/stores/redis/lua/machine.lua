-- The rules of celery_dlock/core/machine.py, function by function and under the same names.

-- Asked for more than once, and read once.
local function runs_lost(claim, now)
  claim.lost = claim.lost or lost_runs(claim.task, now)
  return claim.lost
end

local function may_start(state, claim, entry, started)
  if not free(state, claim.mode) then return false end
  if backlog(state) > 0 then return started() end
  if claim.mode ~= SHARED then return true end
  look(state)
  for _, other in ipairs(state.waiting) do
    local ahead = not entry or other.rank < entry.rank
    if other.mode ~= SHARED and ahead then return started() end
  end
  return true
end

-- *window*: those of whom is seen whose they are.
local function make_room(state, claim, window, now)
  if claim.max_waiting == 0 then return true end
  local later = supposing(state, now)  -- who is woken as this operation ends has made room
  if backlog(later) < claim.max_waiting then return true end
  local seen = keep_if(messages(later), function(entry) return find(window, entry.task) end)
  local own = keep_if(seen, function(entry) return is_of_call(entry, claim) end)
  if #own + backlog(later) - #seen < claim.max_waiting then return true end  -- unseen ones may be, too
  if not own[1] or not claim.drop_oldest then return false end
  to_grant(state, own[1], now, DROPPED)
  return true
end

-- The claim, which waits now, takes the place of a retry that is not due yet. If it is a retry
-- itself, which asks for the next turn, it makes room for a newer task that waits.
local function newest_only(state, claim, now)
  if claim.wait == 'head' then
    look(state)
    local waits = keep_if(messages(state), function(entry) return is_of_call(entry, claim) end)
    if #waits > 1 then to_grant(state, find(state.waiting, claim.task), now, DROPPED) end
    return
  end
  for _, turn in ipairs(state.grants) do
    if turn.early and not turn.ending and is_of_call(turn, claim) then
      turn.ending, turn.due = DROPPED, now
    end
  end
end

local function start_or_wait(state, claim, entry, now)
  -- Asked for only where it makes a difference: on a free key it makes none.
  local function started() return runs_lost(claim, now) > 0 end
  if not claim.enqueues and may_start(state, claim, entry, started) then
    drop_entry(state, claim.task)
    return hold(state, claim, now)
  end
  if claim.wait == 'not' or claim.wait == 'look' then return busy(state, now) end
  local before, at_head = started(), claim.wait == 'head'
  local rank = entry and not at_head and entry.rank
    or ((before or at_head) and before_all or behind_all)(state)
  local arrived = entry and entry.arrived
  local verdict = claim.wait == 'place' and busy(state, now)
  if claim.max_waiting > 0 then look(state) end
  local window = claim.max_waiting > 0 and window_of(state)
  drop_entry(state, claim.task)
  if claim.wait == 'place' then
    insert(state, claim, now, rank, now + claim.patience, '', arrived)
    return verdict
  end
  if not (before or at_head) and not make_room(state, claim, window, now) then return busy(state, now, true) end
  if claim.supersedes and not before and not entry then state.newest = claim end
  insert(state, claim, now, rank, nil, claim.message, arrived)
  if claim.drop_oldest then newest_only(state, claim, now) end
  return parked(state, first_to_end(state))
end

local function take_turn(state, claim, grant, now)
  local replaced = grant.by and claim.gives_way and claim.name == grant.by_name
  if replaced and not grant.ending then grant.ending = DROPPED end
  if grant.ending then
    if grant.taker and grant.taker ~= claim.nonce then return {'drop', 'waiting'} end
    if grant.parked then  -- else nobody would wake another one if this one dies
      grant.taker, grant.due = claim.nonce, now + claim.ttl
    end
    return {'end', grant.ending, grant.by or false}
  end
  state.grants = keep_if(state.grants, function(other) return other ~= grant end)
  local runs = free(state, claim.mode) and not claim.enqueues
  local message = grant.parked and (claim.keep or not runs) and message_of(claim.task)
  if grant.parked then drop_message(claim.task) end
  if runs then
    if claim.mode ~= grant.mode then all_held_as(state, claim) end
    return hold(state, claim, now, message)
  end
  -- The limit or the mode has changed since the task was woken, or it came too late for it: back
  -- to the head.
  if grant.parked then
    to_head(state, claim, grant, now, message)
    return parked(state)
  end
  if claim.enqueues then  -- the slot is reserved for it, and it is to be woken
    insert(state, claim, now, before_all(state), nil, claim.message, grant.arrived)
    return parked(state)
  end
  look(state)
  local entry = insert(state, claim, now, before_all(state), grant.due, '', grant.arrived)
  return start_or_wait(state, claim, entry, now)
end

local function lost_too_often(claim, now)
  return has_message(claim) and runs_lost(claim, now) >= MAX_LOST_RUNS
end

local function answer(state, claim, now)
  local mine = holder_of(state, claim)
  if mine then
    extend(mine, claim, now)
    return {'run', mine.slot, mine.token}
  end
  if state.done then
    forget(state, claim.task)
    return {'drop', 'done'}
  end
  local grant, entry = find(state.grants, claim.task), find(state.waiting, claim.task)
  local running = find(state.holders, claim.task)
  local ends = grant and grant.ending
  if not ends and not running and lost_too_often(claim, now) then
    if claim.wait == 'look' then return busy(state, now) end  -- its message comes next
    to_dead_letter(state, claim.task, claim, RUNS_LOST, now, claim.message)
    if claim.shuts then shut(state, claim, now) end
    return {'drop', 'dead'}
  end
  local asks_twice = grant and grant.parked and claim.enqueues
  if asks_twice or entry and not entry.expires then return {'drop', 'waiting'} end
  if grant then return take_turn(state, claim, grant, now) end
  if not running then return start_or_wait(state, claim, entry, now) end
  if claim.wait ~= 'queue' and claim.wait ~= 'enqueue' and claim.wait ~= 'head' then
    return {'same', holder_row(running), running.expires - now}
  end
  -- A shadow: this delivery may be the only one that survives the first one's death.
  drop_entry(state, claim.task)
  insert(state, claim, now, before_all(state), nil, claim.message)
  return parked(state, running)
end

-- It is known to have started. More is not counted: a store whose answers come too late for a while
-- must not dead-letter what never ran.
local function count_start(claim, now)
  if lost_runs(claim.task, now) == 0 then count_lost(claim.task, now) end
end

-- Nobody heard that the claim had the key: nobody overtakes its task because of that.
local function unheard(state, claim, now)
  count_start(claim, now)
  if not state.done then keep_turn(state, claim, now) end
end

-- It has failed for good: what the store has of it is a dead letter, and the key on hold.
local function fail(state, claim, now)
  if is_stored(state, claim.task) then
    to_dead_letter(state, claim.task, claim, FAILED, now, claim.message)
  end
  shut(state, claim, now)
end

local function conclude(state, claim, outcome, held, now)
  -- It gave way: then no run of it was lost, for it is not to run again.
  local turn = find(state.grants, claim.task)
  if not (turn and turn.ending and turn.by) then turn = nil end
  held = held and not turn
  if outcome == 'done' or outcome == 'failed' then
    if outcome == 'failed' and claim.shuts then fail(state, claim, now) end
    forget(state, claim.task)
    if claim.done_ttl > 0 and not state.done then
      mark_done(claim.done_ttl, now)
      state.done = true
    end
  elseif outcome == 'over' then
    -- A duplicate that ends takes nothing from the one that runs: its message may wait here.
    if held or not find(state.holders, claim.task) then forget(state, claim.task) end
  elseif outcome == 'repeat' then
    if not has_message(claim) then return end
    if not claim.begun then
      if held then unheard(state, claim, now) end
      return
    end
    if held then count_lost(claim.task, now) end  -- or it would run again for ever
    if not kept(state, claim.task) then
      leave_queue(state, claim.task)
      local entry = insert(state, claim, now, before_all(state), nil, claim.message)
      if turn then to_grant(state, entry, now, turn.ending, turn.by) end
    end
  elseif held and outcome == 'unused' then
    count_start(claim, now)
  elseif held then
    count_lost(claim.task, now)
  end
end
