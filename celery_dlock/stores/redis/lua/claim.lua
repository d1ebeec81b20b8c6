-- The claim that enter and leave speak of. ARGV: now, task, nonce, its terms, its message.

local mode, limit, ttl, wait, patience, done_ttl, gives_up, max_waiting, oldest, keep, ordered,
  cooldown, gives_way, supersedes, more_time, who = string.match(
    ARGV[4],
    '^(%a),(%d+),(%d+),(%a+),(%d+),(%d+),(%d+),(%d+),([01]),([01]),([01]),(%d+),'
      .. '([01])([01]),(%d+)(.*)$')
local name, where = string.match(who, '^;(.*);([^;]*)$')
local claim = {
  task = ARGV[2], nonce = ARGV[3], mode = mode, limit = tonumber(limit), ttl = tonumber(ttl),
  wait = wait, patience = tonumber(patience), done_ttl = tonumber(done_ttl),
  gives_up = tonumber(gives_up), max_waiting = tonumber(max_waiting),
  drop_oldest = oldest == '1', keep = keep == '1',
  ordered = ordered == '1', cooldown = tonumber(cooldown),
  enqueues = wait == 'enqueue' or wait == 'newest',
  gives_way = gives_way == '1', supersedes = supersedes == '1', more_time = tonumber(more_time),
  message = ARGV[5], name = name or '', where = where or '',
  makes_room_for = oldest == '1' and (name or '') or nil,
}

-- Until when the slot stays closed that a claim is granted now.
local function cools(claim, now)
  return claim.cooldown > 0 and now + claim.cooldown or 0
end

-- Whether a message comes with the claim; without one a task is a matter of its broker.
local function has_message(claim)
  return claim.wait == 'queue' or claim.wait == 'look'
end
