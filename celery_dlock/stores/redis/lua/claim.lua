-- The claim that an operation speaks of. ARGV: now, task, nonce, its terms, its message, and its
-- other fields by name, as JSON: those that the shortcuts do not know, where they are not as by
-- default. A plain claim has none; what is not there is nil.

local claim
do
  local mode, limit, ttl, wait, patience, done_ttl, gives_up, max_waiting, oldest, ordered,
    entry, keyset, name, where =
    string.match(ARGV[4], '^(%a),(%d+),(%d+),(%a+),(%d+),(%d+),(%d+),(%d+),([01])([01])(%d+),([^;]*);(.*);([^;]*)$')
  claim = {
    task = ARGV[2], nonce = ARGV[3], mode = mode, limit = tonumber(limit), ttl = tonumber(ttl),
    wait = wait, patience = tonumber(patience), done_ttl = tonumber(done_ttl),
    gives_up = tonumber(gives_up), max_waiting = tonumber(max_waiting),
    drop_oldest = oldest == '1', ordered = ordered == '1', entry = tonumber(entry),
    keyset = keyset, name = name, where = where, message = ARGV[5], plain = ARGV[6] == '',
  }
  if not claim.plain then
    for field, value in pairs(cjson.decode(ARGV[6])) do claim[field] = value end
    claim.enqueues = wait == 'enqueue' or wait == 'head'
  end
end

-- Whether a message comes with the claim; without one a task is a matter of its broker.
local function has_message(claim)
  return claim.wait == 'queue' or claim.wait == 'look'
end

-- What the claim is when it is granted the key now.
local function granted(claim, slot, token, now)
  return {
    task = claim.task, nonce = claim.nonce, mode = claim.mode, limit = claim.limit, slot = slot,
    token = token, since = now, expires = now + claim.ttl, name = claim.name, where = claim.where,
    cools = claim.cooldown and now + claim.cooldown, replaced_by = claim.gives_way and '',
  }
end
