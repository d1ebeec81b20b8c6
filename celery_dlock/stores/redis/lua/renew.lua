-- Many tasks go on, each with a key of its own. KEYS: the state of each key; ARGV: now, then
-- task, nonce and ttl of each. Returns when each lease ends now, 0 for a lost one, and -1 where the
-- state cannot be read: one key must not cost the others their leases. Of one that is asked to give
-- way it returns to whom.

-- A server without memory refuses what takes room until a script has written what takes none.
local function write_even_if_full(name, state, now)
  if pcall(write_state, name, state, now) then return end
  keep(name, lifetime(state, now))
  write_state(name, state, now)
end

local now = clock()
local ends = {}
for i, name in ipairs(KEYS) do
  local task, nonce, ttl = unpack(ARGV, 3 * i - 1, 3 * i + 1)
  local claim = {task = task, nonce = nonce, ttl = tonumber(ttl)}
  local readable, state = pcall(read_state, name)
  local mine = readable and holder_of(state, claim)
  local holds = mine and mine.expires > now
  if holds and is_replaced(mine) then
    ends[i] = mine.replaced_by
  elseif holds then
    extend(mine, claim, now)
    write_even_if_full(name, state, now)
    ends[i] = mine.expires
  else
    ends[i] = readable and 0 or -1
  end
end
return ends
