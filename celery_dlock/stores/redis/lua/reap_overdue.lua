-- Reap one key that was found to be due, unless another sweep was faster. Returns its wakes, and
-- after how long the next key of the shard is due.
-- While a cluster moves a slot, a script finds only a part of it on either server. It is refused
-- if it names a part that is not there, and must not take one that it does not name for empty.

local now = clock()
local at = tonumber(redis.call('ZSCORE', DUE, member()) or nil)
local wakes = at and at <= now and reap_due(now) or {}
return {wakes, next_due({DUE}, now)}
