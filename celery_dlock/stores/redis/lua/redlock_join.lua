-- A client has connected. KEYS: the node. A server that was started again since it was raised may
-- have lost its last writes, though it has others: it is to be raised like an empty one.
-- Returns whether it need not be.

local node = read_node()
if node.raised and node.run ~= run_id() then
  node.raised, node.born = false, ''
  write_node(node)
end
return node.raised and 1 or 0
