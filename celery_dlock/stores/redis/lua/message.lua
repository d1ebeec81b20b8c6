-- The message of the task ARGV[2] that waits for the key, or was woken; empty if there is none.
return message_of(ARGV[2])
