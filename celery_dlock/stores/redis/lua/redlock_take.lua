-- Hold the key here, in one slot, with one token. KEYS: the node, the lock.
-- ARGV: now, task, nonce, mode, limit, slot, token, ttl, and '1' for a claim to which a majority
-- has just renewed what it holds: its token is not new, and need not be.
-- No two that hold may be in one slot, nor one beyond the limit of who comes later: so of any two
-- majorities the node that is in both has refused one.
-- A claim that holds already stays what it was: whoever asks again may want something else by now.
-- Returns the token, which stays the one it had, or who is in the way; -1 when the token is too
-- small; when the node does not vote -2, and -3 when it must be raised first.

local now = clock()
local task, nonce, mode, slot = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[6])
local limit, token, ttl = tonumber(ARGV[5]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function conflicts(holder)
  if holder.mode ~= mode then return true end
  if mode == SHARED then return false end
  return holder.slot == slot or holder.slot >= limit
end

local node = read_node()
if not votes(node, now) then return node.raised and -2 or -3 end
let_pass(node, now)
local lock, others = read_lock(KEYS[2], now), {}
local mine = holder_of(lock, task, nonce)
if mine then mode = mine.mode end
for _, holder in ipairs(lock.holders) do
  if holder ~= mine and conflicts(holder) then others[#others + 1] = holder_row(holder) end
end
if #others > 0 then return others end
if mode ~= SHARED then
  local last = math.max(lock.lasts[ARGV[6]] or 0, node.floor)
  if mine and mine.slot == slot and mine.token >= token then
    token = mine.token
  elseif token <= last and ARGV[9] ~= '1' then
    return -1
  end
  lock.lasts[ARGV[6]] = math.max(last, token)
end
if not mine then
  mine = {
    task = task, nonce = nonce, mode = mode, limit = limit, since = now, expires = now,
    name = '', where = '',  -- which only the queue is told
  }
  lock.holders[#lock.holders + 1] = mine
end
mine.slot, mine.token = slot, token
extend(mine, ttl, now)
note(node, ttl, token, now)
write_lock(KEYS[2], lock, now)
return token
