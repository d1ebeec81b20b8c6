-- A call is debounced: celery_dlock/core/debounce.py. ARGV: as for a claim, then for how long, and
-- for how long at most, counted from the first call.

local now, delay, max_delay = clock(), tonumber(ARGV[7]), tonumber(ARGV[8])
local state = load(claim.task, now)
expire(state, now)

local function first_message()
  return messages({holders = state.holders, waiting = {unpack(state.waiting, 1, WINDOW)}})[1]
end

local function wait()
  leave_queue(state, claim.task)
  return insert(state, claim, now, behind_all(state), nil, claim.message)
end

local function close(due)
  state.cooling = keep_if(state.cooling, function(slot) return slot.name ~= UNTIL_DUE end)
  if due <= now then return end
  state.cooling[#state.cooling + 1] = {
    name = UNTIL_DUE, mode = claim.mode, limit = 1, ['until'] = due,
  }
end

local own = find(messages(state), claim.task)
if not own and carried(state, claim.task) then  -- nobody heard the answer, and it has begun
  return {claim.task, commit(state, now)}
end
local entry = own or first_message()
if entry then
  redis.call('HSET', ENTRIES, entry.task, pack_head(entry) .. claim.message)
else
  entry = wait()
end
close(math.min(now + delay, entry.arrived + max_delay))
return {entry.task, commit(state, now)}
