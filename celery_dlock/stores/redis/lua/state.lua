-- The state of a key, as it lies in Redis: what every operation needs. Beside what it is in
-- celery_dlock/core/state.py it has the *latest* instant at which a place expires, when the index
-- says that it is *due*, whether anybody waits (*queued*), and before which instant, but for the
-- pauses, nobody who waits gives up (*patient*: false if nobody does). It is *plain* if it has no
-- field that shortcuts do not know; holders and turns have that for themselves.

local function map(list, change)
  local changed = {}
  for i = 1, #list do changed[i] = change(list[i]) end
  return changed
end

local function pack_state(state)
  local row = {
    map(state.holders, holder_row), map(state.grants, grant_row), state.parked, state.latest,
    state.due, state.queued, state.paused, state.queued and state.patient,
  }
  if #state.cooling > 0 then
    row[9], row[10] = 'cooling', map(state.cooling, cooling_row)
  end
  if state.hold then
    row[#row + 1] = 'hold'
    row[#row + 1] = hold_row(state.hold)
  end
  return cmsgpack.pack(row)
end

local function new_state()
  return {
    holders = {}, grants = {}, parked = 0, latest = 0, due = false, queued = false,
    paused = 0, patient = false, cooling = {},
  }
end
