-- The others have told what this node may have forgotten. KEYS: the node; ARGV: now, the beginning
-- that they were asked about, the largest counter, the longest lease, and for how long it is not to
-- vote. Returns as looking does: whether it votes.

local now = clock()
local node = read_node()
if not node.raised and node.born == ARGV[2] then
  local silence = tonumber(ARGV[5])
  node.raised, node.votes_from, node.run = true, silence > 0 and now + silence or 0, run_id()
  node.counter = math.max(node.counter, tonumber(ARGV[3]))
  node.floor, node.mark, node.turned = node.counter, node.counter, now
  note(node, tonumber(ARGV[4]), 0, now)
end
return votes(node, now) and 1 or node.raised and 0 or -1
