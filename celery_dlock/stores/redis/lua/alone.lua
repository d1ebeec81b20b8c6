-- The only one there is through with the key: it leaves without the rules.
--
-- It is what the rules come to. Nobody waits or is woken, so once its claim is gone expire() and
-- settle() find nothing, forget() has but its lost runs to forget, and save() deletes the state.
-- What counts lost runs or puts a message back is left to the rules, and so are a claim and a key
-- that are not plain, and a task that was done before, whose memory is not to be made longer.

local outcome = ARGV[7]
local is_through = claim.plain and (outcome == 'done' or outcome == 'over')
local is_final = outcome == 'done' or outcome == 'failed'
local remembers = is_final and claim.done_ttl > 0

local row = is_through and look_at_row(STATE)

if is_through and is_held_alone(row, claim) and redis.call('EXISTS', DONE) == 0 then
  redis.call('HDEL', LOST, claim.task)
  redis.call('DEL', STATE)
  if remembers then mark_done(claim.done_ttl, clock()) end
  return redis.status_reply(remembers and 'left 1' or 'left 0')
end
