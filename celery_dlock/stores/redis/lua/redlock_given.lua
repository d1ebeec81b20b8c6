-- The majority gave a claim that the queue let run another slot or token than the queue had
-- proposed. ARGV[7], ARGV[8]: the slot and the token. Later ones are proposed above it.

local now = clock()
local state = load(claim.task, now)
local mine = holder_of(state, claim)
if mine then
  mine.slot, mine.token = tonumber(ARGV[7]), tonumber(ARGV[8])
  note_token(mine.token)
  save(state, due(state), now)
end
return 'OK'
