-- A task that looks at a key or comes with its message where others wait already, and one whose
-- turn has come, of a key that is simple.
--
-- It is what the rules come to. Behind a lease that lasts nobody is let in, woken or ended: who
-- looks is told so, and a message goes to the end of the queue. With its turn taken the key is free
-- but for who takes it, and taken then for all others. Who supersedes others, or gives way to them,
-- is left to the rules.

local parts = simple_state()
if parts then
  local now = clock()

  local function park()
    local last = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
    local gives_up = claim.gives_up > 0 and now + claim.gives_up - parts[7] or nil
    local head = cmsgpack.pack(
      claim.mode, claim.limit, now, nil, gives_up, claim.ordered, claim.makes_room_for)
    put_message(claim.task, head .. claim.message)
    redis.call('ZADD', QUEUE, integer(tonumber(last or 0) + 1), head .. claim.task)
    parts[3], parts[5][2] = parts[3] + 1, earlier(parts[5][2], gives_up)
    write_simple(parts, parts[1][1][8])
    return {{'park', parts[1][1]}, {}}
  end

  local function tell()
    local holder = parts[1][1]
    if parts[5][1] ~= holder[8] then write_simple(parts, holder[8]) end
    return {{'busy', holder, holder[8] - now, parts[3], 0}, {}}
  end

  local function is_behind()
    local holders, grants = parts[1], parts[2]
    if #holders ~= 1 or #grants > 0 then return false end
    local task, _, mode, limit, _, _, _, expires = unpack(holders[1])
    return task ~= claim.task and is_single(mode, limit) and expires > now
      and are_patient(parts, expires) and is_new(claim.task)
      and redis.call('HEXISTS', ENTRIES, claim.task) == 0
  end

  local function may_park(expires)
    if claim.wait ~= 'queue' or claim.supersedes then return false end
    if claim.max_waiting > 0 and parts[3] >= claim.max_waiting then return false end
    return claim.gives_up == 0 or now + claim.gives_up > expires
  end

  local function looks(holder)
    if claim.wait ~= 'look' and claim.wait ~= 'not' then return false end
    return redis.call('HEXISTS', ENTRIES, holder) == 0  -- else its own message does not count
  end

  local function run()
    local token = math.max(read_number(TOKEN) + 1, now)
    local expires = now + claim.ttl
    drop_message(claim.task)  -- what takes no room comes first, as on leaving
    redis.call('SET', TOKEN, integer(token), 'PX', milliseconds(TOKEN_STAYS))
    parts[2], parts[1] = {}, {
      {
        claim.task, claim.nonce, claim.mode, claim.limit, 0, token, now, expires,
        claim.name, claim.where, cools(claim, now),
      },
    }
    write_simple(parts, expires)
    return {{'run', 0, token}, {}}
  end

  local function is_its_turn()
    local holders, grants = parts[1], parts[2]
    if #holders > 0 or #grants ~= 1 then return false end
    if claim.enqueues or claim.keep or claim.gives_way then return false end
    local task, _, _, parked, _, due, ending = unpack(grants[1])
    return task == claim.task and parked and not ending and due > now
      and are_patient(parts, math.max(due, now + claim.ttl))
      and is_single(claim.mode, claim.limit) and is_new(claim.task)
  end

  if is_behind() then
    local holder = parts[1][1]
    if may_park(holder[8]) then return park() end
    if looks(holder[1]) then return tell() end
  end
  if is_its_turn() then return run() end
end
