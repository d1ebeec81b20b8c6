-- A task asks for the key.

local now = clock()
local state = load(claim.task, now)
expire(state, now)
local verdict = answer(state, claim, now)
local wakes = grant_next(state, now)
save(state, now)
return {verdict, with_messages(wakes)}
