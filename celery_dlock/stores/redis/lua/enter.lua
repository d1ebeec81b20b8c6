-- A task asks for the key.

local now = clock()
local state = load_for(claim, now)
expire(state, now)
local verdict = answer(state, claim, now)
return {verdict, commit(state, now)}
