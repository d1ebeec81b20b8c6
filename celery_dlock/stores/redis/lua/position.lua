-- Where the task ARGV[2] stands in the queue: its entry, and how many come before it; or false.

local packed = redis.call('HGET', ENTRIES, ARGV[2])
if not packed then return false end
local entry = unpack_head(packed)
local member = pack_head(entry) .. ARGV[2]
local before = redis.call('ZRANK', QUEUE, member)
if not before then return false end  -- its turn has come
entry.task, entry.rank = ARGV[2], tonumber(redis.call('ZSCORE', QUEUE, member))
return {waiting_row(entry), before}
