-- Which keys are held here, of a few names that Redis comes to. KEYS: the node; ARGV: now, where to
-- go on, what locks are called, how many names. Returns where to go on next, and the locks.

local now = clock()
local next, names = unpack(redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4]))
local held = {}
for _, name in ipairs(names) do
  local readable, lock = pcall(read_lock, name, now)  -- what is called so may be something else
  if readable and #lock.holders > 0 then held[#held + 1] = name end
end
return {next, held}
