"""Whether the lock store takes writes.

A store may answer what it is asked and refuse all changes: a replica, a server without enough
replicas or memory, a full disk. Then no task gets a lock, and what only reads does not notice.
"""

from __future__ import annotations

import uuid

from celery_dlock.core.state import Claim, Mode, Outcome
from celery_dlock.stores.base import LockBackend

#: The key of the library's own that no task locks: any store that answers can tell of it.
NOBODYS = "dlock:nobody"


def check_writes(backend: LockBackend, ttl: int) -> None:
    """Take and release a lock that is in nobody's way.

    Raises :exc:`~celery_dlock.BackendUnavailable` if the store refuses that, or does not answer.
    """
    nonce = uuid.uuid4().hex
    # A reader waits for no other reader, and leaves no token behind.
    claim = Claim(NOBODYS, f"{nonce}:0:0", nonce, ttl, mode=Mode.SHARED, begun=False)
    backend.enter(claim)
    backend.leave(claim, Outcome.OVER)
