-- The queue let a claim run, and the majority did not: it is out again, and waits at the head.
-- ARGV[7]: 'taken', or 'unavailable' when there was no majority; then of everyone whom the majority
-- knows to hold the key: a name, mode, and for how long the queue is to respect it.

local now = clock()
local state = load(claim.task, now)
note_pause(state, now)
local mine, position = holder_of(state, claim)
if mine then table.remove(state.holders, position) end
drop_expired(state, now)
for i = 8, #ARGV, 3 do
  drop_grant(state, ARGV[i])
  state.grants[#state.grants + 1] = {
    task = ARGV[i], mode = ARGV[i + 1], limit = claim.limit, parked = false,
    woken = 0, due = now + tonumber(ARGV[i + 2]),
  }
end

local function wait_at_head()
  local entry = find(state.waiting, claim.task)
  if entry and not entry.expires then return {'park'} end  -- its message was kept
  local arrived = entry and entry.arrived
  drop_entry(state, claim.task)
  if claim.wait == 'queue' and ARGV[7] == 'taken' then
    insert(state, claim, now, before_all(state), nil, claim.message, arrived)
    return {'park'}
  end
  if claim.wait == 'queue' then
    keep_turn(state, claim, now)
  elseif claim.wait == 'place' and claim.patience > 0 then
    insert(state, claim, now, before_all(state), now + claim.patience, '', arrived)
  end
  return busy(state, now)
end

local verdict = mine and wait_at_head() or busy(state, now)
return {verdict, commit(state, now)}
