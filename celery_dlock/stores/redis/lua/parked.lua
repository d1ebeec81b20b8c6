-- The tasks that have a message with the key: who was woken, and a page of those who wait.
-- ARGV[2]: the cursor of the page. Returns the next one's, '0' after the last, and the tasks.

-- What cannot be read must not hide those who wait for this key, or for others.
local tasks = {}

local function add_waiting(row)
  local entry = read_member(row)
  if not entry.expires then tasks[#tasks + 1] = entry.task end
end

local listed, page = pcall(redis.call, 'ZSCAN', QUEUE, ARGV[2], 'COUNT', 250)
page = listed and page or {'0', {}}
for i = 1, #page[2], 2 do pcall(add_waiting, page[2][i]) end
local readable, state = pcall(read_state, STATE)
for _, grant in ipairs(readable and state.grants or {}) do
  if grant.parked then tasks[#tasks + 1] = grant.task end
end
return {page[1], tasks}
