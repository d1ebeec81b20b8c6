-- A task is through with the key. ARGV[7]: how its delivery ended.

local now = clock()
redis.call('HDEL', LOST, '')  -- takes no room, so a server without memory lets all else pass, too
claim.begun = claim.begun ~= false
local state = load_for(claim, now, claim.successor)
note_pause(state, now)
local mine, position = holder_of(state, claim)
local left = mine or claim.again and (not remembers or state.done)
if mine then
  table.remove(state.holders, position)
  if claim.begun then cool(state, mine, now) end
  if is_replaced(mine) then give_way(state, mine, now) end
end
drop_expired(state, now)
conclude(state, claim, outcome, mine ~= nil, now)
state.left = mine and claim
if mine and claim.successor then reserve(state, claim, mine, now) end
local verdict = {left and 'left' or 'lost', carried(state, claim.task) and 1 or 0}
return {verdict, commit(state, now, claim.again)}
