-- Many tasks go on, each with a key of its own. KEYS: the state of each key; ARGV: now, then
-- task, nonce, ttl and lock delay of each. Returns when each lease ends now, 0 for a lost one.

local now = clock()
local ends = {}
for i, name in ipairs(KEYS) do
  local task, nonce, ttl, lock_delay = unpack(ARGV, 4 * i - 2, 4 * i + 1)
  local claim = {
    task = task, nonce = nonce, ttl = tonumber(ttl), lock_delay = tonumber(lock_delay),
  }
  local state = read_state(name)
  local mine = holder_of(state, claim)
  if mine and mine.expires > now then
    extend(mine, claim, now)
    write_state(name, state, now)
    ends[i] = mine.expires
  else
    ends[i] = 0
  end
end
return ends
