-- Time passes, and whose turn it is: celery_dlock/core/turns.py, under the same names.

local function has_messages(state)
  if state.parked > 0 then return true end
  for _, grant in ipairs(state.grants) do
    if grant.parked then return true end
  end
  return false
end

-- When something is to be done for those who wait, should nobody come before; nil for never.
local function next_instant(state)
  if not has_messages(state) then return nil end
  local first
  local function at(instant)
    if not first or instant < first then first = instant end
  end
  for _, grant in ipairs(state.grants) do at(grant.due) end
  for _, slot in ipairs(state.cooling) do at(slot['until']) end
  if state.hold then at(state.hold['until']) end
  if state.parked == 0 then return first end
  for _, holder in ipairs(state.holders) do at(holder.expires) end
  if not state.seen then return first end  -- nobody gives up before
  for i = 1, math.min(WINDOW, #state.waiting) do
    local gives_up = state.waiting[i].gives_up
    if gives_up then at(gives_up + state.paused) end
  end
  return first
end

-- When a sweep has something to do. Of what is nobody's who waits nothing is to stay.
local function due(state)
  if has_messages(state) then return next_instant(state) or 0 end
  local first = opens(state)
  for _, grant in ipairs(state.grants) do
    if not waits(grant) then first = math.min(first or grant.due, grant.due) end
  end
  local ends = state.hold and state.hold['until']
  return ends and math.min(first or ends, ends) or first
end

-- Nobody has waited for too long only because nobody was there who could have woken it.
local function note_pause(state, now)
  local late = now - (next_instant(state) or now)
  if late > UNATTENDED then state.paused = state.paused + late + UNATTENDED end
  state.limit = limit_of_slots(state)  -- also when those are gone who say it
end

local function waited_enough(state, entry, now)
  return entry.gives_up and entry.gives_up + state.paused <= now
end

-- Once more, and to its end if it was woken in vain and has waited for too long by now.
local function wake(state, grant, now)
  local in_vain = grant.woken > 0 or grant.handed_back
  if in_vain and not grant.ending and waited_enough(state, grant, now) then
    grant.ending = TIMED_OUT
  end
  local again = now + math.min(WAKE_AGAIN_FIRST * 2 ^ math.min(grant.woken, 16), WAKE_AGAIN_LAST)
  if grant.gives_up and not grant.ending then
    again = math.min(again, math.max(grant.gives_up + state.paused, now + WAKE_AGAIN_FIRST))
  end
  grant.woken, grant.due, grant.taker, grant.early = grant.woken + 1, again, nil, nil
end

local function wake_due(state, now, woken)
  for _, grant in ipairs(state.grants) do
    if grant.parked and grant.due <= now then
      wake(state, grant, now)
      woken[#woken + 1] = grant
    end
  end
end

-- Who may be let in or has waited for too long: a shadow's turn comes when who runs is gone.
local function window_of(state)
  local window = {}
  for i = 1, math.min(WINDOW, #state.waiting) do
    local entry = state.waiting[i]
    if not find(state.holders, entry.task) then window[#window + 1] = entry end
  end
  return window
end

-- If the first who waits is the only one who is to be let in, the others need not be seen.
local function let_in_first(state, now)
  local entry = first_waiting(state)
  local mode = entry and mode_as(entry, state.left)
  local is_next = entry and not entry.expires and not find(state.holders, entry.task)
    and free(state, mode) and closed(state, {mode = mode})
  if is_next then to_grant(state, entry, now, nil, nil, mode) else look(state) end
end

local function let_in(state, now, window)
  for _, entry in ipairs(window) do
    if find(state.waiting, entry.task) then
      local mode = mode_as(entry, state.left)
      if not free(state, mode) then break end
      if backlog(state) == 0 then break end  -- places alone reserve nothing
      to_grant(state, entry, now, nil, nil, mode)
    end
  end
end

-- Every operation ends with this: end who waited too long, wake who is next or overdue. Those whom
-- the claim lets in that has *left* are held as it was, if it speaks for them.
local function settle(state, now)
  local window, woken = state.seen and window_of(state), {}
  for _, entry in ipairs(window or {}) do
    if waited_enough(state, entry, now) then to_grant(state, entry, now, TIMED_OUT) end
  end
  wake_due(state, now, woken)  -- some of which reserve nothing from now on
  if state.parked > 0 and not closed(state) then
    if not state.seen then let_in_first(state, now) end
    if state.seen then let_in(state, now, window or window_of(state)) end
  end
  wake_due(state, now, woken)
  if not has_messages(state) then state.paused = 0 end
  return woken
end

-- What settle() would make of the state.
local function supposing(state, now)
  local later = {
    supposed = true, seen = true, now = now,
    holders = state.holders, waiting = {unpack(state.waiting)},
    grants = map(map(state.grants, grant_row), grant_of_row), parked = state.parked,
    paused = state.paused, cooling = state.cooling, hold = state.hold, limit = state.limit,
  }
  settle(later, now)
  return later
end

local function drop_expired(state, now)
  state.holders = keep_if(state.holders, function(holder)
    if holder.expires > now then return true end
    if is_replaced(holder) then
      give_way(state, holder, now)
    else
      count_lost(holder.task, now)
    end
    cool(state, holder, now)
  end)
  state.grants = keep_if(state.grants, function(grant) return grant.parked or grant.due > now end)
  state.cooling = keep_if(state.cooling, function(slot) return slot['until'] > now end)
  if state.hold and state.hold['until'] <= now then state.hold = nil end
end

-- What every operation begins with: the time that has passed since the one before.
local function expire(state, now)
  note_pause(state, now)
  drop_expired(state, now)
end

-- Who was woken a moment ago is woken once more: the wake may have been in a lost answer.
local function wake_again(state, woken)
  for _, grant in ipairs(state.grants) do
    local just_woken = grant.parked and grant.woken == 1 and not grant.taker
    if just_woken and not find(woken, grant.task) then woken[#woken + 1] = grant end
  end
end

-- The end of each operation: its state is written, its wakes get their messages.
local function commit(state, now, again)
  local woken = settle(state, now)
  if state.newest then ask_to_give_way(state, state.newest) end  -- also whose turn has come now
  if again then wake_again(state, woken) end
  save(state, due(state), now)
  local wakes = {}
  for i, grant in ipairs(woken) do
    wakes[i] = {grant.task, message_of(grant.task), grant.ending or false, grant.woken}
  end
  return wakes
end
