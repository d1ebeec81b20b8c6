-- Many claims go on. KEYS: the node, and the lock of each; ARGV: now, then task, nonce and ttl of
-- each. Returns when each lease ends here, its slot and token; 0 for one that is not.

local now = clock()
local node = read_node()
local answers = {}
for i = 2, #KEYS do
  local task, nonce, ttl = unpack(ARGV, 3 * i - 4, 3 * i - 2)
  -- One lock that cannot be read is not held here, and must not cost the others their leases.
  local readable, lock = pcall(read_lock, KEYS[i], now)
  local mine = readable and holder_of(lock, task, nonce)
  if mine and mine.expires > now then
    extend(mine, tonumber(ttl), now)
    even_if_full(note, node, tonumber(ttl), 0, now)
    write_lock(KEYS[i], lock, now)
    answers[i - 1] = {mine.expires, mine.slot, mine.token}
  else
    answers[i - 1] = 0
  end
end
return answers
