-- Those of a shard's dead messages that are dead longest: name, since when, name, … without bodies.
-- KEYS[1]: the shard's dead; ARGV[1]: how many at most. What cannot be read comes first.

local found = {}
local rows = redis.call('HGETALL', KEYS[1])
for i = 1, #rows, 2 do
  local at = string.match(rows[i + 1], '^[^,;]*,[^,;]*,[^,;]*,(%d+);')
  found[#found + 1] = {name = rows[i], at = tonumber(at or 0)}
end
table.sort(found, function(one, other)
  if one.at ~= other.at then return one.at < other.at end
  return one.name < other.name
end)
local oldest = {}
for i = 1, math.min(#found, tonumber(ARGV[1])) do
  oldest[#oldest + 1] = found[i].name
  oldest[#oldest + 1] = string.format('%.0f', found[i].at)
end
return oldest
