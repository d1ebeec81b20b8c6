-- A key that nobody holds, waits for or is woken for, asked for by a task of which nothing is
-- known: it is taken without the rules, which cost more than all else.
--
-- It is what the rules come to. With an empty state answer() goes straight to start_or_wait(),
-- may_start() finds nobody to weigh, hold() gives the first slot, and commit() writes the state and
-- wakes nobody. Whose claim is not plain, or may be dead-lettered (lost runs of a task that comes
-- with its message), is left to the rules; so is a key that is not ours.

do
  local last

  local function is_free()
    if not claim.plain or redis.call('EXISTS', STATE, DONE) > 0 then return false end
    last = tonumber(redis.call('GET', TOKEN) or 0)
    return last and (not has_message(claim) or redis.call('HEXISTS', LOST, claim.task) == 0)
  end

  if is_free() then
    local now, token = clock(), 0
    if claim.mode ~= SHARED then
      token = math.max(last + 1, now)
      redis.call('SET', TOKEN, integer(token), 'PX', milliseconds(TOKEN_STAYS))
    end
    local state = pack_one_holder(granted(claim, 0, token, now))
    redis.call('SET', STATE, state, 'PX', milliseconds(claim.ttl + DAY))
    return redis.status_reply('run ' .. integer(token))
  end
end
