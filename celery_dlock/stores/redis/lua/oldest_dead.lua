-- Which of a shard's dead letters are dead longest: name, since when, name, … without bodies.
-- KEYS[1]: the names by when they died; ARGV[1]: how many at most.
return redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
