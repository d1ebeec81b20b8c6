"""What people ask about locks and do with them, for the commands and the page alike.

It runs where somebody asks: in a command, or in the process that serves the page. It reads the lock
store, the result backend and the history; what it does to a lock is done as any process does it. It
imports whatever works with locks, and neither click nor Starlette.
"""
