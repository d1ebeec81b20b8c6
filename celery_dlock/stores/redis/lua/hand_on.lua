-- The holder of a simple key leaves it to the first who waits, who gets it alone.
--
-- It is what the rules come to. Of the one who leaves there are but its lost runs to forget; the
-- first is the only one to be let in, and woken for the first time. Who has a place is left to the
-- rules, and so are who asks again, for its wakes may have been lost, and a key that may have to
-- cool down.

local parts = simple_state()
if parts then
  local now = clock()
  local outcome, remembers = ARGV[6], ARGV[6] == 'done' and claim.done_ttl > 0

  local function is_handed_on()
    if #parts[1] ~= 1 or #parts[2] > 0 then return false end
    if outcome ~= 'done' and outcome ~= 'over' or ARGV[7] then return false end
    local task, nonce, _, _, _, _, _, expires = unpack(parts[1][1])
    if (parts[1][1][11] or 0) ~= 0 then return false end
    return task == claim.task and nonce == claim.nonce and expires > now
      and are_patient(parts, math.max(expires, now + WAKE_AGAIN_FIRST))
      and redis.call('EXISTS', DONE) == 0 and redis.call('HEXISTS', ENTRIES, task) == 0
  end

  local function next_one()
    local first = redis.call('ZRANGE', QUEUE, 0, 0)[1]
    local readable, entry, task = pcall(unpack_head, first)
    if readable and not entry.expires then return first, entry, task end
  end

  local first, entry, task
  if is_handed_on() then first, entry, task = next_one() end
  if first and is_single(entry.mode, entry.limit) then
    local due = now + WAKE_AGAIN_FIRST
    redis.call('HDEL', LOST, claim.task)
    if remembers then mark_done(claim.done_ttl, now) end
    redis.call('ZREM', QUEUE, first)
    parts[1], parts[2], parts[3] = {}, {{
      task, entry.mode, entry.limit, true, 1, due, false, '', entry.gives_up or false, false,
      entry.ordered or false, false, false, entry.arrived,
    }}, parts[3] - 1
    parts[6] = redis.call('EXISTS', QUEUE) == 1
    write_simple(parts, due)
    return {{'left', remembers and 1 or 0}, {{task, message_of(task), false, 1}}}
  end
end
