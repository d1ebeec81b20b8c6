-- Time has passed: drop what has ended, call who is next and, again, who did not answer.

local now = clock()
local state = load(nil, now)
expire(state, now)
return {false, commit(state, now)}
