-- A key that nobody holds, waits for or is woken for, asked for by a task of which nothing is
-- known: it is taken without the rules, which cost more than all else.
--
-- It is what the rules come to. With an empty state answer() goes straight to start_or_wait(),
-- may_start() finds nobody to weigh, hold() gives the first slot, and commit() writes the state and
-- wakes nobody. Whoever leaves a message there (keep, enqueue), gives way to newer ones, or may be
-- dead-lettered (lost runs of a task that comes with its message), is left to the rules; so is a
-- key that is not ours.

do
  local last

  local function is_free()
    if claim.keep or claim.gives_way or claim.enqueues then return false end
    if redis.call('EXISTS', STATE, DONE) > 0 then return false end
    last = tonumber(redis.call('GET', TOKEN) or 0)
    return last and (not has_message(claim) or redis.call('HEXISTS', LOST, claim.task) == 0)
  end

  if is_free() then
    local now, token = clock(), 0
    local expires = now + claim.ttl
    if claim.mode == EXCLUSIVE then
      token = math.max(last + 1, now)
      redis.call('SET', TOKEN, integer(token), 'PX', milliseconds(TOKEN_STAYS))
    end
    local holder = {
      claim.task, claim.nonce, claim.mode, claim.limit, 0, token, now, expires,
      claim.name, claim.where, cools(claim, now),
    }
    local state = cmsgpack.pack({{holder}, {}, 0, 0, false, false, 0})
    local stays = math.max(claim.ttl, claim.cooldown) + DAY
    redis.call('SET', STATE, state, 'PX', milliseconds(stays))
    return redis.status_reply('run ' .. integer(token))
  end
end
