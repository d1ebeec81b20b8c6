-- Which of the tasks from ARGV[2] on have a message with the key; others may have a place.

local parked = {}
for i = 2, #ARGV do
  local packed = redis.call('HGET', ENTRIES, ARGV[i])
  if packed and not unpack_head(packed).lapses then parked[#parked + 1] = ARGV[i] end
end
return parked
