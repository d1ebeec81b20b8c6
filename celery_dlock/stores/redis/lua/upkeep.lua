-- What people do to a queue: celery_dlock/core/upkeep.py, under the same names.
-- ARGV: now, the task, what to do, and why, for how long it is done, or which slot opens; of a hold
-- which one was, its name, who, why, how long.

local now, task = clock(), ARGV[2]
local state = load(task, now)
expire(state, now)

local function parked_turn()
  local turn = find(state.grants, task)
  return turn and turn.parked and turn
end

local function cancel()
  local entry, turn = find(messages(state), task), find(state.grants, task)
  if entry then
    to_grant(state, entry, now, REVOKED)
  elseif turn and not turn.ending then
    turn.ending = REVOKED
    if turn.early then
      turn.due = now
    elseif not turn.parked then turn.due = math.max(turn.due, now + GAVE_WAY) end
  end
  return entry or turn
end

local function dead_letter()
  local turn = parked_turn()
  if not turn or turn.woken < WAKES_BEFORE_DEAD then return false end
  to_dead_letter(state, task, turn, ARGV[4], now, '')
  return true
end

local function hand_back()
  local turn = parked_turn()
  if turn and not turn.taker then  -- else an earlier wake is being answered
    turn.woken, turn.handed_back = math.max(0, turn.woken - 1), turn.handed_back or now
    local strange_for = now - turn.handed_back
    turn.due = now + (strange_for < STRANGER_RESERVED and WAKE_ELSEWHERE or WAKE_AGAIN_FIRST)
  end
  return turn
end

local function replay()
  local dead, message, cause = take_dead(task)
  if dead and cause ~= RUNS_LOST and cause ~= FAILED and state.done then return false end
  redis.call('DEL', DONE)
  redis.call('HDEL', LOST, task)
  if dead and not is_stored(state, task) then
    dead.task, dead.gives_up = task, 0
    leave_queue(state, task)  -- another delivery may have a place, or one reserved
    local rank = (cause == FAILED and before_all or behind_all)(state)
    insert(state, dead, now, rank, nil, message)
  end
  return dead
end

local function discard()
  local dead, ttl = take_dead(task), tonumber(ARGV[4])
  if dead and not kept(state, task) then
    redis.call('HDEL', LOST, task)
    if ttl > 0 then mark_done(ttl, now) end
  end
  return dead
end

local function hold()
  local stands, was, name = state.hold and state.hold.name or '', ARGV[4], ARGV[5]
  if stands == was then
    put_on_hold(state, name, ARGV[6], ARGV[7], now + tonumber(ARGV[8]), now)
  end
  return stands == was or stands == name
end

local function open_slot()
  local before = #state.cooling
  state.cooling = keep_if(state.cooling, function(slot) return slot.name ~= ARGV[4] end)
  return #state.cooling < before
end

local does = {
  cancel = cancel, dead_letter = dead_letter, hand_back = hand_back, replay = replay,
  discard = discard, hold = hold, open_slot = open_slot,
}
local verdict = does[ARGV[3]]() and 1 or 0
return {verdict, commit(state, now)}
