-- Who holds some keys here. KEYS: the node, and the lock of each. Nothing is changed.

local now = clock()
local found = {}
for i = 2, #KEYS do
  local readable, lock = pcall(read_lock, KEYS[i], now)  -- others can be told of all the same
  found[i - 1] = readable and map(lock.holders, holder_row) or {}
end
return found
