-- The whole of a key, as it lies there; nothing is changed.

local now = clock()
local state = read_state(STATE)
local waiting = {}
local rows = redis.call('ZRANGE', QUEUE, 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  waiting[#waiting + 1] = to_row(read_member(rows[i], rows[i + 1]), WAITING)
end
local lost = {}
local counts = redis.call('HGETALL', LOST)
for i = 1, #counts, 2 do
  local count = remembered(counts[i + 1], now)
  if count > 0 then lost[#lost + 1] = {counts[i], count} end
end
return {
  map(state.holders, to_row, HOLDER), map(state.grants, to_row, GRANT), waiting, state.parked, lost,
  state.paused,
}
