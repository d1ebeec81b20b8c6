-- A task that is refused at a key with one holder, or that waits behind it, and one whose turn has
-- come, of a key that is simple.
--
-- It is what the rules come to. Behind a lease that lasts nobody is let in, woken or ended: who
-- looks is told so, a message goes to the end of the queue, and a place keeps its rank. With its
-- turn taken the key is free but for who takes it, and taken then for all others. Whose claim is
-- not plain is left to the rules.

local state = claim.plain and look_at_state(look_at_row(STATE))
if is_plain(state, 1, 0) or is_simple(state, 0, 1) then
  local now = clock()
  local holder, grant = state.holders[1], state.grants[1]

  -- Without a message nothing is due, and the key does not stay for ever.
  local function write(expires)
    state.queued, state.latest = true, math.max(state.latest, expires or 0)
    if state.parked > 0 then return write_simple(state, holder.expires) end
    local stays = milliseconds(math.max(state.latest, holder.expires) - now + DAY)
    redis.call('SET', STATE, pack_state(state), 'PX', stays)
    redis.call('PEXPIRE', QUEUE, stays)
    redis.call('PEXPIRE', ENTRIES, stays)
  end

  local function behind_all()
    return tonumber(redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2] or 0) + 1
  end

  local function entry_of(rank, arrived)
    return {
      task = claim.task, mode = claim.mode, arrived = arrived or now,
      ordered = claim.ordered, name = claim.name, entry = claim.entry, keyset = claim.keyset,
      rank = rank or behind_all(),
    }
  end

  local function park()
    local entry = entry_of()
    entry.gives_up = claim.gives_up > 0 and now + claim.gives_up - state.paused or nil
    enqueue(entry, claim.message)  -- first, for a script that has written is refused no room
    if state.parked == 0 then
      redis.call('PERSIST', QUEUE)
      redis.call('PERSIST', ENTRIES)
    end
    state.parked, state.patient = state.parked + 1, earlier(state.patient, entry.gives_up)
    write()
    return {{'park', holder_row(holder)}, {}}
  end

  local function busy()
    return {{'busy', holder_row(holder), holder.expires - now, state.parked, 0}, {}}
  end

  local function tell()
    if state.parked > 0 and state.due ~= holder.expires then write() end
    return busy()
  end

  -- What the task has in the queue, if that is a place.
  local function own_place()
    local readable, place = pcall(unpack_head, redis.call('HGET', ENTRIES, claim.task))
    if not readable or not place.expires then return end
    place.member = pack_head(place) .. claim.task
    place.rank = tonumber(redis.call('ZSCORE', QUEUE, place.member))
    return place.rank and place
  end

  local function take_place(old)
    if old then redis.call('ZREM', QUEUE, old.member) end
    local lasts = old and old.expires > now
    local entry = entry_of(lasts and old.rank, lasts and old.arrived)
    entry.expires = now + claim.patience
    enqueue(entry, '')
    write(entry.expires)
    return busy()
  end

  local function is_behind()
    return holder and holder.task ~= claim.task and holder.mode == EXCLUSIVE
      and holder.expires > now and are_patient(state, holder.expires) and is_new(claim.task)
  end

  local function may_park()
    if claim.wait ~= 'queue' then return false end
    if claim.max_waiting > 0 and state.parked >= claim.max_waiting then return false end
    return claim.gives_up == 0 or now + claim.gives_up > holder.expires
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
      and claim.mode == EXCLUSIVE and grant.mode == EXCLUSIVE and is_new(claim.task)
  end

  local function may_be_told()
    return redis.call('HEXISTS', ENTRIES, holder.task) == 0  -- else its own does not count
  end

  if is_behind() then
    local is_first_visit = redis.call('HEXISTS', ENTRIES, claim.task) == 0
    if is_first_visit and may_park() then return park() end
    if claim.wait == 'place' and may_be_told() then
      local place = not is_first_visit and own_place()
      if is_first_visit or place then return take_place(place) end
    end
    local looks = claim.wait == 'look' or claim.wait == 'not'
    if is_first_visit and looks and may_be_told() then return tell() end
  end
  if is_its_turn() then return run() end
end
