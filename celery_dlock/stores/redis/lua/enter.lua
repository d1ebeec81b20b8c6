-- A task asks for the key.

local now = clock()
local state = load_for(claim, now)
expire(state, now)
ask_with_limit(state, claim)
local verdict = answer(state, claim, now)
return {verdict, commit(state, now)}
