"""The check that goes into the write: a late one is refused, a repeated one is found done.

It runs in the body of a task, in the transaction of its write, and asks no lock store.
"""

from celery_dlock.fencing.fence import admit, create_table, mint, once

__all__ = ["admit", "create_table", "mint", "once"]
