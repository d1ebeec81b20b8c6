-- The claim that enter and leave speak of.

local claim = {
  task = ARGV[2], nonce = ARGV[3], mode = ARGV[4], limit = tonumber(ARGV[5]),
  ttl = tonumber(ARGV[6]), wait = ARGV[7], patience = tonumber(ARGV[8]),
  lock_delay = tonumber(ARGV[9]), done_ttl = tonumber(ARGV[10]), gives_up = tonumber(ARGV[11]),
  max_waiting = tonumber(ARGV[12]), drop_oldest = ARGV[13] == '1', keep = ARGV[14] == '1',
  successor = ARGV[15], message = ARGV[16],
}
