-- Small edits of a key's state, as in celery_dlock/core/edits.py: each one thing, none a rule.
-- A state is changed in place; what concerns the queue is written at once, the rest by save().

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

-- Whether the slot is kept for a turn: not for an ending, nor for what nobody seems to take, nor
-- for what is not due yet.
local function reserves(grant)
  if grant.ending then return false end
  if grant.ordered then return true end
  local strange_for = grant.handed_back and grant.due - grant.handed_back or 0
  return grant.woken <= WAKES_RESERVED and strange_for <= STRANGER_RESERVED
    and not grant.early
end

-- Whether it is about to be woken in vain, and may reserve nothing from then on.
local function wavers(state, grant)
  return grant.parked and grant.due <= state.now and (grant.woken > 0 or grant.handed_back)
end

-- How many slots nobody else may have now.
local function taken(state)
  return #state.holders + #keep_if(state.grants, reserves) + #state.cooling
end

local function limit_of_slots(state)
  for _, list in ipairs({state.holders, state.grants, state.cooling}) do
    for _, slot in ipairs(list) do
      if slot.mode == LIMITED then return slot.limit end
    end
  end
end

-- How many may hold the key together; 1 where nobody is there to say it.
local function limit_of(state)
  return state.limit or limit_of_slots(state) or 1
end

-- From now on the key has the limit of the claim, its newest asker, if that has one. Where it has
-- fallen below what is taken nothing is kept for those who wait elsewhere.
local function ask_with_limit(state, claim)
  if claim.mode ~= LIMITED or claim.limit == 0 then return end
  state.limit = claim.limit
  if claim.limit == limit_of_slots(state) then return end
  if taken(state) > claim.limit then
    state.grants = keep_if(state.grants, function(turn) return not turn.elsewhere end)
  end
  for _, list in ipairs({state.holders, state.grants, state.cooling}) do
    for _, slot in ipairs(list) do
      if slot.mode == LIMITED then slot.limit = claim.limit end
    end
  end
end

-- Whether nobody else can be let in as this operation ends, whoever it is. *one*: who is let in.
local function closed(state, one)
  local taken, modes = 0, {}
  local function take(item)
    taken, modes[item.mode] = taken + 1, true
  end
  if state.hold then return true end
  if one then take(one) end
  for _, holder in ipairs(state.holders) do take(holder) end
  for _, grant in ipairs(state.grants) do
    if reserves(grant) and not wavers(state, grant) then take(grant) end
  end
  for _, slot in ipairs(state.cooling) do take(slot) end
  if modes[LIMITED] and not modes[SHARED] then return modes[EXCLUSIVE] or taken >= limit_of(state) end
  return modes[EXCLUSIVE] or modes[LIMITED]
end

-- The queue is about to change: who is at its head is seen before, unless that cannot matter.
local function foresee(state, gives_up)
  if state.seen then return end
  if not closed(state) or not is_patient(state, gives_up) then look(state) end
end

local function take_out(state, entry)
  foresee(state)
  state.added = false
  local _, i = find(state.waiting, entry.task)
  table.remove(state.waiting, i)
  if not entry.expires then state.parked = state.parked - 1 end
end

local function drop_entry(state, task)
  local entry = find(state.waiting, task)
  if not entry then return end
  take_out(state, entry)
  discard(entry)
end

local function add(state, entry, message)
  foresee(state, entry.gives_up)
  enqueue(entry, message)
  state.patient = earlier(state.patient, entry.gives_up)
  local i = 1
  while state.waiting[i] and state.waiting[i].rank < entry.rank do i = i + 1 end
  table.insert(state.waiting, i, entry)
  if entry.expires then
    state.latest = math.max(state.latest, entry.expires)
  else
    state.parked = state.parked + 1
  end
  state.queued, state.added = true, true
  return entry
end

local function insert(state, claim, now, rank, expires, message, arrived)
  local had_its_turn = find(state.holders, claim.task)  -- its patience is at an end
  local impatient = claim.gives_up > 0 and not expires and not had_its_turn
  local begins = state.hold and state.hold['until'] or now
  local late = claim.enqueues and claim.delay
  return add(state, {
    task = claim.task, mode = claim.mode,
    rank = rank, arrived = arrived or now, expires = expires,
    gives_up = impatient and begins + claim.gives_up - state.paused or nil,
    ordered = claim.ordered or false, name = claim.name or '', entry = claim.entry or 0,
    keyset = claim.keyset or '', due = late and now + claim.delay or nil,
  }, message)
end

-- Back into the queue as the first, with the patience that was left when it had its turn. One that
-- was refused because it asks in another mode is not taken for that of others again.
local function to_head(state, claim, turn, now, message)
  add(state, {
    task = claim.task, mode = claim.mode,
    rank = before_all(state), arrived = turn.arrived or now,
    gives_up = turn.gives_up or nil, ordered = claim.ordered or turn.ordered,
    name = claim.name, entry = claim.mode == turn.mode and claim.entry or 0,
    keyset = claim.keyset,
  }, message)
end

-- The mode of the claim, if the entry waits by the same entry of the same task's lock; or its own.
local function mode_as(entry, claim)
  local is_alike = claim and claim.entry > 0
    and entry.entry == claim.entry and entry.name == claim.name
  return is_alike and claim.mode or entry.mode
end

-- All who are seen and wait are held as the claim is, if it speaks for them.
local function all_held_as(state, claim)
  look(state)
  for i = 1, math.min(WINDOW, #state.waiting) do
    local entry = state.waiting[i]
    local mode = mode_as(entry, claim)
    if mode ~= entry.mode then
      local message = message_of(entry.task)
      unqueue(entry)
      entry.mode = mode
      enqueue(entry, message)
    end
  end
end

-- Out of the queue, into the turns. A supposed state is nobody's, so nothing is written for it.
local function to_grant(state, entry, now, ending, by, mode)
  local due = entry.expires or math.max(now, not ending and entry.due or now)
  local early = not entry.expires and due > now or nil
  mode = mode or entry.mode
  state.grants[#state.grants + 1] = {
    task = entry.task, mode = mode, parked = not entry.expires,
    limit = mode == LIMITED and limit_of(state) or 1, woken = 0, due = due, early = early,
    name = early and entry.name ~= '' and entry.name or nil,
    keyset = early and entry.keyset ~= '' and entry.keyset or nil,
    ending = ending, gives_up = entry.gives_up,
    ordered = entry.ordered, arrived = entry.arrived, by = by,
  }
  take_out(state, entry)
  if not state.supposed then (entry.expires and discard or unqueue)(entry) end
end

local function drop_grant(state, task)
  local grant = find(state.grants, task)
  if not grant then return end
  state.grants = keep_if(state.grants, function(g) return g.task ~= task end)
  if grant.parked then drop_message(task) end
end

-- First the turn, which may let in somebody else: what the queue has to be seen for.
local function leave_queue(state, task)
  drop_grant(state, task)
  drop_entry(state, task)
end

local function forget(state, task)
  leave_queue(state, task)
  redis.call('HDEL', LOST, task)
end

-- Out of the queue and the turns, onto the list of dead letters: *message*, or what the store has.
local function to_dead_letter(state, task, turn, cause, now, message)
  put_dead(task, turn, cause, now, message ~= '' and message or message_of(task))
  leave_queue(state, task)
end

-- The turn that a claim had waits for its task, which comes by itself; its message is here. It is
-- woken when its patience is over; on a key that is on hold it waits first in the queue.
local function keep_turn(state, claim, now)
  local entry = find(state.waiting, claim.task)
  if not entry or entry.expires then
    leave_queue(state, claim.task)
    entry = insert(state, claim, now, before_all(state), nil, claim.message)
  end
  if state.hold then return end
  to_grant(state, entry, now)
  local turn = state.grants[#state.grants]
  turn.woken, turn.due = 1, now + claim.patience
end

-- Whether there is somebody whose turn it is: not who is only known to have given way.
local function waits(grant)
  return grant.parked or not grant.ending
end

-- Whoever runs, or is about to, gives way to the claim, if it is another task of its name.
local function ask_to_give_way(state, claim)
  local newer = task_id_of(claim.task)
  for _, holder in ipairs(state.holders) do
    if holder.replaced_by and holder.name == claim.name and task_id_of(holder.task) ~= newer then
      holder.replaced_by = claim.task
    end
  end
  for _, grant in ipairs(state.grants) do
    if waits(grant) and not grant.ending and task_id_of(grant.task) ~= newer then
      grant.by, grant.by_name = claim.task, claim.name
    end
  end
end

local function is_replaced(holder)
  return (holder.replaced_by or '') ~= ''
end

-- Who is gone, and was replaced, does not run again: it ends, wherever its message is.
local function give_way(state, gone, now)
  look(state)  -- its message, if there is one, is at the head
  local entry = find(state.waiting, gone.task)
  if entry then return to_grant(state, entry, now, DROPPED, gone.replaced_by) end
  state.grants[#state.grants + 1] = {
    task = gone.task, mode = gone.mode, limit = gone.limit, parked = false, woken = 0,
    due = now + GAVE_WAY, ending = DROPPED, by = gone.replaced_by,
  }
end

-- Keep the slot closed of a holder that is gone, for as long as it is to cool down.
local function cool(state, gone, now)
  if (gone.cools or 0) <= now then return end
  state.cooling[#state.cooling + 1] = {
    name = gone.nonce, mode = gone.mode, limit = gone.limit, ['until'] = gone.cools,
  }
end

-- Nobody gets a slot before *until*, which is what a person wants; nor loses patience.
local function put_on_hold(state, name, by, because, till, now)
  local before = state.hold
  state.paused = state.paused + till - (before and before['until'] or now)
  state.hold = till > now and {
    name = name, by = by, because = because, since = before and before.since or now,
    ['until'] = till,
  } or nil
end

-- The task of the claim has failed for good: the key is on hold, unless a person has put it on hold.
local function shut(state, claim, now)
  if state.hold then return end
  local because = task_id_of(claim.task) .. ' failed'
  put_on_hold(state, 'failed|' .. claim.task, claim.name, because, now + SHUT_FOR, now)
end

-- Keep the slot that a claim leaves for its successor. It comes by itself, unless it was faster
-- than this claim and left its message with the store. A place that it has lasts as long, too.
local function reserve(state, claim, left, now)
  if find(state.holders, claim.successor) or find(state.grants, claim.successor) then return end
  local entry = find(state.waiting, claim.successor)
  if entry then
    to_grant(state, entry, now)
    local turn = state.grants[#state.grants]
    if not turn.parked then turn.due = math.max(turn.due, now + claim.patience) end
    return
  end
  local is_over = left.mode == LIMITED and taken(state) >= limit_of(state)
  if claim.elsewhere and is_over then return end
  state.grants[#state.grants + 1] = {
    task = claim.successor, mode = left.mode, limit = left.limit, parked = false,
    woken = 0, due = now + claim.patience, elsewhere = claim.elsewhere,
  }
end

-- Whether the store has the message of a task: parked, or woken.
local function is_stored(state, task)
  local entry, grant = find(state.waiting, task), find(state.grants, task)
  return entry and not entry.expires or grant and grant.parked
end

local function kept(state, task)
  return state.done or is_stored(state, task)
end

-- Whether it is of a call of the same task as the claim, with the same keys.
local function is_of_call(entry, claim)
  return (entry.name or '') == claim.name and (entry.keyset or '') == claim.keyset
end

local function carried(state, task)
  return kept(state, task) or find(state.holders, task) ~= nil
end

-- Whether one more may hold the key.
local function free(state, mode)
  if state.hold then return false end
  local taken = 0
  for _, list in ipairs({state.holders, keep_if(state.grants, reserves), state.cooling}) do
    for _, other in ipairs(list) do
      if other.mode ~= mode then return false end
      taken = taken + 1
    end
  end
  if mode == LIMITED then return taken < limit_of(state) end
  return mode == SHARED or taken == 0
end

-- The parked tasks that are loaded and do not run meanwhile.
local function messages(state)
  return keep_if(state.waiting, function(entry)
    return not entry.expires and not find(state.holders, entry.task)
  end)
end

-- Whether a holder may have a duplicate in the queue.
local function has_shadow(state)
  for _, holder in ipairs(state.holders) do
    if redis.call('HEXISTS', ENTRIES, holder.task) == 1 then return true end
  end
end

-- How many messages wait; the duplicate of a running task does not count.
local function backlog(state)
  local count = state.parked
  if count == 0 then return 0 end
  if not state.seen and has_shadow(state) then look(state) end
  for _, entry in ipairs(state.waiting) do
    if not entry.expires and find(state.holders, entry.task) then count = count - 1 end
  end
  return count
end

-- When the first slot opens that cools down; nil if none does.
local function opens(state)
  local first
  for _, slot in ipairs(state.cooling) do
    first = math.min(first or slot['until'], slot['until'])
  end
  return first
end

local function first_to_end(state)
  local holder
  for _, other in ipairs(state.holders) do
    if not holder or other.expires < holder.expires then holder = other end
  end
  return holder
end

local function parked(state, holder)
  local hold = state.hold
  return {'park', holder and holder_row(holder) or false, hold and hold_row(hold)}
end

local function busy(state, now, full)
  local holder, hold = first_to_end(state), state.hold
  local ends = hold and hold['until'] or holder and holder.expires or opens(state) or now
  return {
    'busy', holder and holder_row(holder) or false, math.max(0, ends - now), backlog(state),
    full and 1 or 0, hold and hold_row(hold),
  }
end

local function free_slot(state)
  local taken = {}
  for _, holder in ipairs(state.holders) do taken[holder.slot] = true end
  local slot = 0
  while taken[slot] do slot = slot + 1 end
  return slot
end

-- *message* is what the store has of it already, if anything.
local function hold(state, claim, now, message)
  local reads = claim.mode == SHARED
  local slot = reads and 0 or free_slot(state)
  local token = reads and 0 or next_token(now)
  state.holders[#state.holders + 1] = granted(claim, slot, token, now)
  if claim.keep then  -- its own shadow: what runs again should this run be lost
    insert(state, claim, now, before_all(state), nil, message or claim.message)
  end
  return {'run', slot, token}
end

local function extend(holder, claim, now)
  holder.expires = math.max(holder.expires, now + claim.ttl)
end
