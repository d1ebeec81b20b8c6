-- What one node of a Redlock remembers; it votes for itself and knows nothing of the others.
--
--   dlock:redlock:node            string  raised, votes_from: whether it votes, and since when
--                                         counter: the largest token it has heard of
--                                         floor, mark, turned: the counter some time ago (below)
--                                         longest, till: the longest lease of late, and its end
--                                         born: names this beginning; run: the server that wrote it
--   dlock:1:{17}:{order:42}:lock  string  who holds the key here, and the last token of each slot
--
-- A later token of a slot must be larger. Tokens of idle keys are forgotten, so that they do not
-- pile up; by then the counter of that time, which is no smaller, has become the floor.

local NODE = KEYS[1]
local PERIOD = 60000000
local TOKEN_STAYS = 3 * PERIOD  -- two periods may begin late, where nothing happens in between
-- Which server this is: a new name for each start.
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
end

local function read_node()
  local packed = redis.call('GET', NODE)
  local parts = packed and cmsgpack.unpack(packed) or {false, 0, 0, 0, 0, 0, 0, 0, '', ''}
  return {
    raised = parts[1], votes_from = parts[2], counter = parts[3], floor = parts[4],
    mark = parts[5], turned = parts[6], longest = parts[7], till = parts[8],
    born = parts[9], run = parts[10],
  }
end

local function write_node(node)
  redis.call('SET', NODE, cmsgpack.pack({
    node.raised, node.votes_from, node.counter, node.floor, node.mark, node.turned,
    node.longest, node.till, node.born, node.run,
  }))
end

-- A server without memory refuses what takes room until a script has written what takes none.
local function even_if_full(write, ...)
  if pcall(write, ...) then return end
  redis.call('PERSIST', NODE)
  write(...)
end

local function votes(node, now)
  return node.raised and node.votes_from <= now
end

local function let_pass(node, now)
  local since = now - node.turned
  if since < PERIOD then return end
  node.floor = since < 2 * PERIOD and node.mark or node.counter
  node.mark, node.turned = node.counter, now
end

-- A lease was given: what a node that forgets everything may have to wait for.
local function note(node, lease, token, now)
  if lease >= node.longest or node.till <= now then
    node.longest, node.till = lease, now + lease
  end
  node.counter = math.max(node.counter, token)
  write_node(node)
end

local function read_lock(name, now)
  local packed = redis.call('GET', name)
  if not packed then return {holders = {}, lasts = {}} end
  local rows, lasts = unpack(cmsgpack.unpack(packed))
  if type(rows) ~= 'table' or type(lasts) ~= 'table' then error('not a lock: ' .. name) end
  local holders = {}
  for _, holder in ipairs(map(rows, holder_of_row)) do
    if holder.expires > now then holders[#holders + 1] = holder end
  end
  return {holders = holders, lasts = lasts}
end

local function write_lock(name, lock, now)
  local stays = 0
  for _, holder in ipairs(lock.holders) do stays = math.max(stays, holder.expires - now) end
  stays = stays + TOKEN_STAYS + (DRIVEN and DAY or 0)
  local packed = cmsgpack.pack({map(lock.holders, holder_row), lock.lasts})
  redis.call('SET', name, packed, 'PX', milliseconds(stays))
end

local function holder_of(lock, task, nonce)
  for i, holder in ipairs(lock.holders) do
    if holder.task == task and holder.nonce == nonce then return holder, i end
  end
end

local function extend(holder, ttl, now)
  holder.expires = math.max(holder.expires, now + ttl)
end
