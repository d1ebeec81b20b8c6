-- A claim is through, or has not won. KEYS: the node, the lock; ARGV: now, task, nonce, and '1' for
-- one that is through: its hold goes also where its time was over. Returns 1 if it was here, 2 if
-- it was and its time was over, and 0.

local now = clock()
local through = ARGV[4] == '1'
-- What has expired and was nobody else's since is still its own.
local lock = read_lock(KEYS[2], through and 0 or now)
local mine, position = holder_of(lock, ARGV[2], ARGV[3])
if not mine then return 0 end
table.remove(lock.holders, position)
even_if_full(write_lock, KEYS[2], lock, now)
return mine.expires > now and 1 or 2
