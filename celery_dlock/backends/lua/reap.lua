-- Time has passed: drop what has ended, call again who did not answer, call who is next.

local now = clock()
local state = load(nil, now)
expire(state, now)
local wakes = {}
for _, grant in ipairs(state.grants) do
  if grant.parked and grant.due <= now then
    wakes[#wakes + 1] = grant.task
    call_again(grant, now)
  end
end
for _, task in ipairs(grant_next(state, now)) do wakes[#wakes + 1] = task end
save(state, now)
return {false, with_messages(wakes)}
