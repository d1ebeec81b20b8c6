-- A task is through with the key. ARGV[17]: how its delivery ended.

local now = clock()
local successor = claim.successor ~= '' and claim.successor
local state = load(claim.task, now, successor)
local mine, position = holder_of(state, claim)
if mine then table.remove(state.holders, position) end
expire(state, now)
conclude(state, claim, ARGV[17], mine ~= nil, now)
if mine and successor then reserve(state, claim, now) end
local verdict = {mine and 'left' or 'lost', carried(state, claim.task) and 1 or 0}
return {verdict, commit(state, now)}
