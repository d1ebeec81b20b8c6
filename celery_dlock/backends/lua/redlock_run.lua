-- Which server this is: a new name for each start.

local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
end
