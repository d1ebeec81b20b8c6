-- The only one there is through with the key: it leaves without the rules.
--
-- It is what the rules come to. Nobody waits or is woken, so once its claim is gone expire() and
-- settle() find nothing, forget() has but its lost runs to forget, and save() deletes the state.
-- What counts lost runs, puts a message back or keeps the key for a successor is left to the rules;
-- so is a task that was done before, whose memory is not to be made longer, and a key that may have
-- to cool down.

do
  local outcome, successor = ARGV[6], ARGV[7] or ''

  local function is_alone()
    if outcome ~= 'done' and outcome ~= 'over' or successor ~= '' then return false end
    local readable, parts = pcall(cmsgpack.unpack, redis.call('GET', STATE) or '')
    if not readable or type(parts) ~= 'table' or #parts ~= 7 then return false end
    local holders, grants, _, _, _, queued = unpack(parts)
    if #holders ~= 1 or #grants > 0 or queued then return false end
    local task, nonce = unpack(holders[1])
    if (holders[1][11] or 0) ~= 0 then return false end
    return task == claim.task and nonce == claim.nonce and redis.call('EXISTS', DONE) == 0
  end

  if is_alone() then
    local remembers = outcome == 'done' and claim.done_ttl > 0
    redis.call('HDEL', LOST, claim.task)
    redis.call('DEL', STATE)
    if remembers then mark_done(claim.done_ttl, clock()) end
    return redis.status_reply(remembers and 'left 1' or 'left 0')
  end
end
