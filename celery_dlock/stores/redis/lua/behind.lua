-- A task that comes with its message where others wait already, and one whose turn has come, of a
-- key that is simple.
--
-- It is what the rules come to. Behind a lease that lasts nobody is let in, woken or ended: the
-- message goes to the end of the queue. With its turn taken the key is free but for who takes it,
-- and taken then for all others.

do
  local function park(parts, now)
    local last = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
    local head = cmsgpack.pack(claim.mode, claim.limit, now, nil, nil, claim.ordered)
    redis.call('HSET', ENTRIES, claim.task, head .. claim.message)
    redis.call('ZADD', QUEUE, integer(tonumber(last or 0) + 1), head .. claim.task)
    parts[3] = parts[3] + 1
    write_simple(parts, parts[1][1][9])
    return {{'park'}, {}}
  end

  local function is_behind(holders, grants, now)
    if #holders ~= 1 or #grants > 0 then return false end
    if claim.wait ~= 'queue' or claim.gives_up > 0 or claim.max_waiting > 0 then return false end
    local task, _, mode, limit, _, _, _, _, frees = unpack(holders[1])
    return task ~= claim.task and is_single(mode, limit) and frees > now and is_new(claim.task)
      and redis.call('HEXISTS', ENTRIES, claim.task) == 0
  end

  local function run(parts, now)
    local token = math.max(read_number(TOKEN) + 1, now)
    local expires = now + claim.ttl
    local frees = expires + claim.lock_delay
    redis.call('SET', TOKEN, integer(token), 'PX', milliseconds(TOKEN_STAYS))
    redis.call('HDEL', ENTRIES, claim.task)
    parts[2], parts[1] = {}, {
      {claim.task, claim.nonce, claim.mode, claim.limit, 0, token, now, expires, frees},
    }
    write_simple(parts, frees)
    return {{'run', 0, token}, {}}
  end

  local function is_its_turn(holders, grants, now)
    if #holders > 0 or #grants ~= 1 then return false end
    if claim.wait == 'enqueue' or claim.keep then return false end
    local task, _, _, parked, _, due, ending = unpack(grants[1])
    return task == claim.task and parked and not ending and due > now
      and is_single(claim.mode, claim.limit) and is_new(claim.task)
  end

  local parts = simple_state()
  local now = parts and clock()
  if parts and is_behind(parts[1], parts[2], now) then return park(parts, now) end
  if parts and is_its_turn(parts[1], parts[2], now) then return run(parts, now) end
end
