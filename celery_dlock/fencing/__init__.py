"""The check that goes into the write: it refuses a late write, and finds a repeated one done.

It runs in the body of a task, in the transaction that writes, and does not ask the lock store.
"""

from celery_dlock.fencing.fence import admit, create_table, mint, once

__all__ = ["admit", "create_table", "mint", "once"]
