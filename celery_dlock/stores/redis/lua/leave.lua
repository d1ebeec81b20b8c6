-- A task is through with the key. ARGV[6]: how its delivery ended; ARGV[7]: its successor, if any;
-- ARGV[8]: '1' if it asks again, for it did not hear the answer; ARGV[9]: '1' if no body has begun.

local now = clock()
redis.call('HDEL', LOST, '')  -- takes no room, so a server without memory lets all else pass, too
claim.successor, claim.begun = ARGV[7], ARGV[9] ~= '1'
local successor = (ARGV[7] or '') ~= '' and ARGV[7]
local state = load_for(claim, now, successor)
note_pause(state, now)
local mine, position = holder_of(state, claim)
local again = ARGV[8] == '1'
local remembered = ARGV[6] == 'done' and claim.done_ttl > 0
local left = mine or again and (not remembered or state.done)
if mine then
  table.remove(state.holders, position)
  if claim.begun then cool(state, mine, now) end
  if is_replaced(mine) then give_way(state, mine, now) end
end
drop_expired(state, now)
conclude(state, claim, ARGV[6], mine ~= nil, now)
if mine and successor then reserve(state, claim, now) end
local verdict = {left and 'left' or 'lost', carried(state, claim.task) and 1 or 0}
return {verdict, commit(state, now, again)}
