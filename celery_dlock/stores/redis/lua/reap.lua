-- Time has passed: drop what has expired, wake who is next and, again, who did not answer.

local now = clock()
local state = load(nil, now)
expire(state, now)
return {false, commit(state, now)}
