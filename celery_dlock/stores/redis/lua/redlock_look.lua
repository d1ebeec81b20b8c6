-- What a claim has to know before it takes the key. KEYS: the node, the lock.
-- ARGV[2] names a new beginning, should this be one.
-- Returns whether the node votes (1), will vote later (0) or must be raised first (-1), the name of
-- its beginning, its time, counter and longest lease, and who holds the key here.

local now = clock()
local node = read_node()
if not node.raised and node.born == '' then
  node.born = ARGV[2]
  write_node(node)
end
local stands = votes(node, now) and 1 or node.raised and 0 or -1
local holders = map(read_lock(KEYS[2], now).holders, holder_row)
return {stands, node.born, now, node.counter, node.longest, holders}
