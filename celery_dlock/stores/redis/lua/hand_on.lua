-- The holder of a simple key leaves it to the first who waits, who gets it alone.
--
-- It is what the rules come to. Of the one who leaves there are but its lost runs to forget; the
-- first is the only one to be let in, and woken for the first time. A claim and an entry that are
-- not plain are left to the rules, and so is who has a place.

if is_through and is_simple(look_at_state(row), 1, 0) then
  local state, now = known, clock()
  local holder = state.holders[1]

  local function is_handed_on()
    return holder.task == claim.task and holder.nonce == claim.nonce and holder.expires > now
      and are_patient(state, math.max(holder.expires, now + WAKE_AGAIN_FIRST))
      and redis.call('EXISTS', DONE) == 0 and redis.call('HEXISTS', ENTRIES, claim.task) == 0
  end

  local function next_one()
    local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    local readable, entry, task = pcall(unpack_head, first)
    if readable and entry.plain and not entry.expires then return first, entry, task end
  end

  local first, entry, task
  if is_handed_on() then first, entry, task = next_one() end
  if first and entry.mode == EXCLUSIVE and claim.mode == EXCLUSIVE then
    local due = now + WAKE_AGAIN_FIRST
    redis.call('HDEL', LOST, claim.task)
    if remembers then mark_done(claim.done_ttl, now) end
    redis.call('ZREM', QUEUE, first)
    state.holders, state.grants, state.parked = {}, {{
      task = task, mode = entry.mode, limit = 1, parked = true, woken = 1, due = due,
      gives_up = entry.gives_up, ordered = entry.ordered, arrived = entry.arrived,
    }}, state.parked - 1
    state.queued = redis.call('EXISTS', QUEUE) == 1
    write_simple(state, due)
    return {{'left', remembers and 1 or 0}, {{task, message_of(task), false, 1}}}
  end
end
