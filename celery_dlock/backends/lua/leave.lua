-- A task is through with the key. ARGV[6]: how its delivery ended; ARGV[7]: its successor, if any.

local now = clock()
claim.successor = ARGV[7]
local successor = (ARGV[7] or '') ~= '' and ARGV[7]
local state = load(claim.task, now, successor)
local mine, position = holder_of(state, claim)
if mine then table.remove(state.holders, position) end
expire(state, now)
conclude(state, claim, ARGV[6], mine ~= nil, now)
if mine and successor then reserve(state, claim, now) end
local verdict = {mine and 'left' or 'lost', carried(state, claim.task) and 1 or 0}
return {verdict, commit(state, now)}
