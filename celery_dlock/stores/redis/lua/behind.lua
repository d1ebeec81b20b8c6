-- A task that looks at a key or comes with its message where others wait already, and one whose
-- turn has come, of a key that is simple.
--
-- It is what the rules come to. Behind a lease that lasts nobody is let in, woken or ended: who
-- looks is told so, and a message goes to the end of the queue. With its turn taken the key is free
-- but for who takes it, and taken then for all others. Whose claim is not plain is left to the
-- rules.

local state = claim.plain and look_at_state(look_at_row(STATE))
if state and (is_simple(state, 1, 0) or is_simple(state, 0, 1)) then
  local now = clock()
  local holder, grant = state.holders[1], state.grants[1]

  local function park()
    local last = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
    local entry = {
      task = claim.task, mode = claim.mode, limit = claim.limit, arrived = now,
      gives_up = claim.gives_up > 0 and now + claim.gives_up - state.paused or nil,
      ordered = claim.ordered, makes_room_for = claim.makes_room_for,
      rank = tonumber(last or 0) + 1,
    }
    enqueue(entry, claim.message)
    state.parked, state.patient = state.parked + 1, earlier(state.patient, entry.gives_up)
    write_simple(state, holder.expires)
    return {{'park', holder_row(holder)}, {}}
  end

  local function tell()
    if state.due ~= holder.expires then write_simple(state, holder.expires) end
    return {{'busy', holder_row(holder), holder.expires - now, state.parked, 0}, {}}
  end

  local function is_behind()
    return holder and holder.task ~= claim.task and is_single(holder.mode, holder.limit)
      and holder.expires > now and are_patient(state, holder.expires) and is_new(claim.task)
      and redis.call('HEXISTS', ENTRIES, claim.task) == 0
  end

  local function may_park()
    if claim.wait ~= 'queue' then return false end
    if claim.max_waiting > 0 and state.parked >= claim.max_waiting then return false end
    return claim.gives_up == 0 or now + claim.gives_up > holder.expires
  end

  local function looks()
    if claim.wait ~= 'look' and claim.wait ~= 'not' then return false end
    return redis.call('HEXISTS', ENTRIES, holder.task) == 0  -- else its own does not count
  end

  local function run()
    local token = math.max(read_number(TOKEN) + 1, now)
    drop_message(claim.task)  -- what takes no room comes first, as on leaving
    redis.call('SET', TOKEN, integer(token), 'PX', milliseconds(TOKEN_STAYS))
    state.grants, state.holders = {}, {granted(claim, 0, token, now)}
    write_simple(state, now + claim.ttl)
    return {{'run', 0, token}, {}}
  end

  local function is_its_turn()
    return grant and grant.task == claim.task and grant.parked and grant.due > now
      and are_patient(state, math.max(grant.due, now + claim.ttl))
      and is_single(claim.mode, claim.limit) and is_new(claim.task)
  end

  if is_behind() then
    if may_park() then return park() end
    if looks() then return tell() end
  end
  if is_its_turn() then return run() end
end
