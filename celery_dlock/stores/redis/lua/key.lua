-- How one lock key lies in Redis. Keys are spread over shards by a hash of their name; all of a
-- shard, its index included, lies in one hash slot: {17} is the hash tag of the shard 17.
--
--   {17}:due                   zset    the shard's keys by when a sweep has something to do there
--   {17}:dead                  hash    the shard's dead messages: key and task -> head .. message
--   {17}:died                  zset    key and task of each of those by when it died
--   {17}:tasks                 hash    task id -> items: where its messages are, parked or dead
--   {17}:{order:42}:state      string  holders, turns, how many messages are parked, when it is due
--                                      and until when nobody who waits gives up
--   {17}:{order:42}:queue      zset    who waits: head .. task by rank; a head packs mode, limit,
--                                      arrival, expiry, the end of patience, if it is ordered and
--                                      for newer tasks of which name it makes room
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

local HOLDER = {
  'task', 'nonce', 'mode', 'limit', 'slot', 'token', 'since', 'expires', 'name', 'where', 'cools',
  'replaced_by',
}
local GRANT = {
  'task', 'mode', 'limit', 'parked', 'woken', 'due', 'ending', 'taker', 'gives_up', 'handed_back',
  'ordered', 'by', 'by_name', 'arrived',
}
local WAITING = {
  'task', 'mode', 'limit', 'rank', 'arrived', 'expires', 'gives_up', 'ordered', 'makes_room_for',
}

-- To another key, of which the index of its shard knows the name within the shard.
local function turn_to(index, member)
  local base = string.sub(index, 1, -4) .. member
  STATE, QUEUE, ENTRIES = base .. ':state', base .. ':queue', base .. ':entries'
  LOST, TOKEN, DUE = base .. ':lost', base .. ':token', index
  TASKS = string.sub(index, 1, -4) .. 'tasks'
end

local function to_row(record, fields)
  local row = {}
  for i, field in ipairs(fields) do row[i] = record[field] or false end
  return row
end

local function from_row(row, fields)
  local record = {}
  for i, field in ipairs(fields) do record[field] = row[i] end
  return record
end

local function find(list, task)
  for i, item in ipairs(list) do
    if item.task == task then return item, i end
  end
end

local function map(list, change, fields)
  local changed = {}
  for i, item in ipairs(list) do changed[i] = change(item, fields) end
  return changed
end

-- The state: what every operation needs.

local function read_state(name, known)
  local packed = (known or {packed = redis.call('GET', name)}).packed
  if not packed then
    return {
      holders = {}, grants = {}, parked = 0, latest = 0, due = false, paused = 0, patient = false,
    }
  end
  local parts = known and known.parts or unpack_state(packed)
    or error('this is not the state of a lock: ' .. name)
  local due, patient = parts[5], nil
  if type(due) == 'table' then due, patient = due[1], due[2] end
  if type(patient) ~= 'number' and patient ~= false then patient = nil end
  return {
    packed = packed,
    holders = map(parts[1], from_row, HOLDER),
    grants = map(parts[2], from_row, GRANT),
    parked = parts[3],
    latest = parts[4],  -- the latest instant at which a place expires
    due = due,  -- as the index has it
    queued = parts[6],  -- whether anybody waits
    paused = parts[7],  -- for how long nobody served those who wait
    -- Before which instant, but for the pauses, nobody who waits gives up: false if nobody ever
    -- does, nil if that is not known, as after an older version, which drops it with each change.
    patient = parts[6] and patient,
  }
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
  return math.max(0, latest - now) + DAY
end

local function write_state(name, state, now)
  local holders = map(state.holders, to_row, HOLDER)
  local grants = map(state.grants, to_row, GRANT)
  local due = state.due
  if state.queued and state.patient ~= nil then due = {due, state.patient} end
  local packed = cmsgpack.pack({
    holders, grants, state.parked, state.latest, due, state.queued or false, state.paused,
  })
  if packed == state.packed then return end
  local stays = lifetime(state, now)
  if stays then
    redis.call('SET', name, packed, 'PX', milliseconds(stays))
  else
    redis.call('SET', name, packed)
  end
end

-- The queue: of which an operation sees the head, and where its own task stands.

local function pack_head(entry)
  return cmsgpack.pack(
    entry.mode, entry.limit, entry.arrived, entry.expires, entry.gives_up, entry.ordered,
    entry.makes_room_for)
end

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

local function enqueue(entry, message)
  local head = pack_head(entry)
  if entry.expires then
    redis.call('HSET', ENTRIES, entry.task, head .. message)
  else
    put_message(entry.task, head .. message)
  end
  redis.call('ZADD', QUEUE, integer(entry.rank), head .. entry.task)
end

-- Another message in the place of that of an entry.
local function rewrite(entry, message)
  redis.call('HSET', ENTRIES, entry.task, pack_head(entry) .. message)
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
  local known = state.waiting
  state.seen, state.waiting = true, {}
  local has_all, patient, parked = load_window(state), false, 0
  for _, entry in ipairs(state.waiting) do
    patient = earlier(patient, entry.gives_up)
    if not entry.expires then parked = parked + 1 end
  end
  if has_all then state.patient = patient end
  -- A server that evicts may have forgotten how many there are.
  state.parked = has_all and parked or math.max(state.parked, parked)
  for _, entry in ipairs(known) do
    if not find(state.waiting, entry.task) then state.waiting[#state.waiting + 1] = entry end
  end
end

-- The first who waits, if no more than that is asked for.
local function first_waiting(state)
  local row = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  if not row[1] then return end
  local entry = read_member(row[1], row[2])
  local known = find(state.waiting, entry.task)
  if not known then table.insert(state.waiting, 1, entry) end
  return known or entry
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
  local state = read_state(STATE, known)
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
  state.horizon = math.max(horizon, state.latest)
  local waits_long = state.patient ~= nil and is_patient(state, state.patient)
  if not waits_long or state.parked < 2 then look(state) end
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
  if #state.holders == 0 and #state.grants == 0 and not state.queued then
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
  local head = table.concat({turn.mode, integer(turn.limit), cause, integer(now)}, ',')
  local name = member() .. task
  redis.call('HSET', DEAD, name, head .. ';' .. message)
  redis.call('ZADD', DIED, integer(now), name)
  list_message('d', task)
end

local function take_dead(task)
  local value = redis.call('HGET', DEAD, member() .. task)
  if not value then return end
  local mode, limit, cause, message = string.match(value, '^([xs]),(%d+),([^,;]*)[^;]*;(.*)$')
  if not mode then error('this is not a dead message of a lock: ' .. STATE) end
  redis.call('HDEL', DEAD, member() .. task)
  redis.call('ZREM', DIED, member() .. task)
  unlist_message('d', task)
  return {mode = mode, limit = tonumber(limit)}, message, cause
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
