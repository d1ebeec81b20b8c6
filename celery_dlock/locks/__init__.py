"""Taking, keeping, losing and releasing a lock: what a task, ``lock()`` and beat have in common.

It runs in whatever process holds a lock, with the threads and clocks that this takes. It knows the
stores and the rules, and nothing of Celery's tasks and messages.
"""
