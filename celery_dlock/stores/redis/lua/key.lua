-- How one lock key lies in Redis. Keys are spread over shards by a hash of their name; all of a
-- shard, its index included, lies in one hash slot: {17} is the hash tag of the shard 17.
--
--   {17}:due                   zset    the shard's keys by when a sweep has something to do there
--   {17}:dead                  hash    the shard's dead messages: key and task -> head .. message
--   {17}:died                  zset    key and task of each of those by when it died
--   {17}:tasks                 hash    task id -> items: where its messages are, parked or dead
--   {17}:{order:42}:state      string  a row of what every operation needs, see state.lua
--   {17}:{order:42}:queue      zset    who waits: head .. task by rank; a head packs mode, arrival,
--                                      expiry, the end of patience, if it is ordered, name, entry
--                                      and key set, and its other fields as in a row
--   {17}:{order:42}:entries    hash    task -> head .. message, for whoever waits and for parked
--                                      tasks in their turn
--   {17}:{order:42}:lost       hash    task -> how many runs were lost, and until when that is known
--   {17}:{order:42}:token      string  the last fencing token
--   {17}:{order:42}:notes      hash    what is noted beside the key, see note.lua; never expires
--   {17}:{charge(42)}:swap     string  what stands under a name, see swap.lua; no part of a key
--   {17}:{order:42}:done:task  string  until when the asking task counts as finished
--
-- Instants are microseconds.

-- One operation clears away at most this many windows of expired places.
local ROUNDS = 32

-- To another key, of which the index of its shard knows the name within the shard.
local function turn_to(index, member)
  local base = string.sub(index, 1, -4) .. member
  STATE, QUEUE, ENTRIES = base .. ':state', base .. ':queue', base .. ':entries'
  LOST, TOKEN, DUE = base .. ':lost', base .. ':token', index
  TASKS = string.sub(index, 1, -4) .. 'tasks'
end

local function find(list, task)
  for i, item in ipairs(list) do
    if item.task == task then return item, i end
  end
end

-- When the last slot opens that cools down, and the key itself, or *latest*.
local function latest_opening(state, latest)
  for _, slot in ipairs(state.cooling) do latest = math.max(latest, slot['until']) end
  return math.max(latest, state.hold and state.hold['until'] or 0)
end

-- How long the key must outlive this operation; nil with parked messages, which never end.
local function lifetime(state, now)
  local latest = state.latest
  if state.parked > 0 then return nil end
  for _, grant in ipairs(state.grants) do
    if grant.parked then return nil end
    latest = math.max(latest, grant.due)
  end
  for _, holder in ipairs(state.holders) do
    latest = math.max(latest, holder.expires, holder.cools or 0)
  end
  return math.max(0, latest_opening(state, latest) - now) + DAY
end

local function write_state(name, state, now)
  local packed = pack_state(state)
  if packed == state.packed then return end
  local stays = lifetime(state, now)
  if stays then
    redis.call('SET', name, packed, 'PX', milliseconds(stays))
  else
    redis.call('SET', name, packed)
  end
end

-- The state for Python: its fields, each behind its name.
local function to_reply(state, waiting, lost)
  return {
    'holders', map(state.holders, holder_row), 'grants', map(state.grants, grant_row),
    'cooling', map(state.cooling, cooling_row),
    'hold', state.hold and hold_row(state.hold) or false,
    'waiting', map(waiting, waiting_row), 'parked', state.parked, 'paused', state.paused,
    'lost', lost,
  }
end

-- The queue: of which an operation sees the head, and where its own task stands.

local function read_member(member, rank)
  local entry, task = unpack_head(member)
  entry.task, entry.rank = task, tonumber(rank)
  return entry
end

local function unqueue(entry)
  redis.call('ZREM', QUEUE, pack_head(entry) .. entry.task)
end

local function discard(entry)
  unqueue(entry)
  if entry.expires then redis.call('HDEL', ENTRIES, entry.task) else drop_message(entry.task) end
end

local function add_live(waiting, entry, now)
  if entry.expires and entry.expires <= now then
    discard(entry)
  else
    waiting[#waiting + 1] = entry
  end
end

-- Whether the window has all there are.
local function load_window(state)
  for _ = 1, ROUNDS do
    local before = #state.waiting
    local rows = redis.call('ZRANGE', QUEUE, before, WINDOW - 1, 'WITHSCORES')
    for i = 1, #rows, 2 do add_live(state.waiting, read_member(rows[i], rows[i + 1]), state.now) end
    if #state.waiting - before == #rows / 2 then return #state.waiting < WINDOW end
  end
end

-- The head of the queue is read, for those rules that have to look at it: before anything changes
-- there, see foresee(). Until then *waiting* has only the tasks that the operation speaks of.
local function look(state)
  if state.seen then return end
  local before = state.waiting
  state.seen, state.waiting = true, {}
  local has_all, patient, parked = load_window(state), false, 0
  for _, entry in ipairs(state.waiting) do
    patient = earlier(patient, entry.gives_up)
    if not entry.expires then parked = parked + 1 end
  end
  if has_all then state.patient = patient end
  -- A server that evicts may have forgotten how many there are.
  state.parked = has_all and parked or math.max(state.parked, parked)
  for _, entry in ipairs(before) do
    if not find(state.waiting, entry.task) then state.waiting[#state.waiting + 1] = entry end
  end
end

-- The first who waits, if no more than that is asked for.
local function first_waiting(state)
  local row = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  if not row[1] then return end
  local entry = read_member(row[1], row[2])
  local own = find(state.waiting, entry.task)
  if not own then table.insert(state.waiting, 1, entry) end
  return own or entry
end

local function rank_at(state, position)
  local row = state.queued and redis.call('ZRANGE', QUEUE, position, position, 'WITHSCORES') or {}
  return tonumber(row[2] or 0)
end

local function before_all(state) return rank_at(state, 0) - 1 end
local function behind_all(state) return rank_at(state, -1) + 1 end

local function load_own(state, task, now)
  if not state.queued or find(state.waiting, task) then return end
  local turn = find(state.grants, task)
  if turn and turn.parked then return end  -- which has the message
  local packed = redis.call('HGET', ENTRIES, task)
  if not packed then return end
  local entry = unpack_head(packed)
  local rank = redis.call('ZSCORE', QUEUE, pack_head(entry) .. task)
  if not rank then return end  -- its turn has come
  entry.task, entry.rank = task, tonumber(rank)
  add_live(state.waiting, entry, now)
end

local function load_state(task, now)
  local state = known or read_state(STATE)
  state.waiting, state.now, state.seen = {}, now, not state.queued
  state.done = task and read_number(DONE) > now
  state.endless = not lifetime(state, now)
  return state
end

local function load(task, now)
  local state = load_state(task, now)
  look(state)
  if task then load_own(state, task, now) end
  return state
end

local function is_patient(state, gives_up)
  return not gives_up or gives_up + state.paused > state.horizon
end

-- For an operation of *claim*, and *successor* is to have the key after it, if it is known. Of who
-- waits it has to see nobody, or only whom it lets in, if nobody gives up before all else that may
-- be due when it ends. So few as one are seen as easily as left out.
local function load_for(claim, now, successor)
  local state = load_state(claim.task, now)
  local horizon = now + math.max(WAKE_AGAIN_LAST, claim.patience, claim.ttl)
  for _, holder in ipairs(state.holders) do
    horizon = math.max(horizon, holder.expires, holder.cools or 0)
  end
  for _, grant in ipairs(state.grants) do horizon = math.max(horizon, grant.due) end
  state.horizon = latest_opening(state, math.max(horizon, state.latest))
  if not is_patient(state, state.patient) or state.parked < 2 then look(state) end
  load_own(state, claim.task, now)
  if successor then load_own(state, successor, now) end
  return state
end

local function keep(name, stays)
  if stays then
    redis.call('PEXPIRE', name, milliseconds(stays))
  else
    redis.call('PERSIST', name)
  end
end

local function index(state, due)
  if due == state.due then return end
  if due then
    redis.call('ZADD', DUE, integer(due), member())
  else
    redis.call('ZREM', DUE, member())
  end
  state.due = due
end

local function save(state, due, now)
  index(state, due or false)
  local waited = state.queued
  state.queued = waited and (state.added or redis.call('EXISTS', QUEUE) == 1)
  local slots = #state.holders + #state.grants + #state.cooling
  if slots == 0 and not state.hold and not state.queued then
    redis.call('DEL', STATE)
    return
  end
  write_state(STATE, state, now)
  if waited then
    local stays = lifetime(state, now)
    if not stays and state.endless then return end  -- as before
    keep(QUEUE, stays)
    keep(ENTRIES, stays)
  end
end

-- What is remembered of tasks that neither hold nor wait.

local function remembered(value, now)
  local count, ends = string.match(value or '', '^(%d+) (%d+)$')
  return count and tonumber(ends) > now and tonumber(count) or 0
end

local function lost_runs(task, now)
  return remembered(redis.call('HGET', LOST, task), now)
end

local function count_lost(task, now)
  local count = lost_runs(task, now) + 1
  redis.call('HSET', LOST, task, integer(count) .. ' ' .. integer(now + REMEMBER_LOST))
  redis.call('PEXPIRE', LOST, milliseconds(REMEMBER_LOST))
  -- Two at random for each new one: what nobody asks for again cannot pile up.
  local some = redis.call('HRANDFIELD', LOST, 2, 'WITHVALUES')
  for i = 1, #some, 2 do
    if remembered(some[i + 1], now) == 0 then redis.call('HDEL', LOST, some[i]) end
  end
end

-- The dead: out of every queue, until a person comes.

local function put_dead(task, turn, cause, now, message)
  local head = table.concat({turn.mode, cause, integer(now)}, ',')
  local name = member() .. task
  redis.call('HSET', DEAD, name, head .. ';' .. message)
  redis.call('ZADD', DIED, integer(now), name)
  list_message('d', task)
end

local function take_dead(task)
  local value = redis.call('HGET', DEAD, member() .. task)
  if not value then return end
  local mode, cause, message = string.match(value, '^([xsl]),([^,;]*)[^;]*;(.*)$')
  if not mode then error('this is not a dead message of a lock: ' .. STATE) end
  redis.call('HDEL', DEAD, member() .. task)
  redis.call('ZREM', DIED, member() .. task)
  unlist_message('d', task)
  return {mode = mode}, message, cause
end

-- Later tokens are larger.
local function write_token(token)
  redis.call('SET', TOKEN, integer(token), 'PX', milliseconds(TOKEN_STAYS))
end

local function note_token(token)
  write_token(math.max(read_number(TOKEN), token))
end

local function next_token(now)
  local token = math.max(read_number(TOKEN) + 1, now)
  write_token(token)
  return token
end
