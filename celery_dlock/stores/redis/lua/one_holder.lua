-- The row of a state that says only that one plain claim holds the key. Most operations make such a
-- one, or end it, and do so without the functions that read and write all others: to define these
-- would take as long as all that is done here.

local function pack_one_holder(holder)
  return cmsgpack.pack({{holder_row(holder)}, {}, 0, 0, false, false, 0, false})
end

-- The row of a state, as it lies there: it may be anything. It is *packed* so.
local function look_at_row(name)
  local packed = redis.call('GET', name)
  local readable, row = pcall(cmsgpack.unpack, packed or '')
  if not readable or type(row) ~= 'table' then return {packed = packed} end
  row.packed = packed
  return row
end

-- Whether *row* says only that this claim holds the key.
local function is_held_alone(row, claim)
  local holders, grants, queued = row[1], row[2], row[6]
  return #row == 8 and not queued and type(holders) == 'table' and type(grants) == 'table'
    and #holders == 1 and #grants == 0 and is_plain_holder(holders[1], claim.task, claim.nonce)
end
