-- The tasks that have a message with the key: who was called, and a page of those who wait.
-- ARGV[2]: the cursor of the page. Returns the next one's, '0' after the last, and the tasks.

-- A state that cannot be read must not hide those who wait for this key, or for others.
local readable, state = pcall(read_state, STATE)
local tasks = {}
local page = redis.call('ZSCAN', QUEUE, ARGV[2], 'COUNT', 250)
for i = 1, #page[2], 2 do
  local entry = read_member(page[2][i])
  if not entry.lapses then tasks[#tasks + 1] = entry.task end
end
for _, grant in ipairs(readable and state.grants or {}) do
  if grant.parked then tasks[#tasks + 1] = grant.task end
end
return {page[1], tasks}
