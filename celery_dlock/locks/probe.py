"""Whether the lock store takes writes.

A store may answer what it is asked and refuse all changes: a replica, a server without enough
replicas or memory, a full disk, a user who may not run a command. Then no task gets a lock, and
what only reads does not notice.
"""

from __future__ import annotations

import uuid

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Mode, Outcome, WaitMode
from celery_dlock.stores.base import LockBackend

#: The key of the library's own that no task locks: any store that answers can tell of it.
NOBODYS = "dlock:nobody"

#: Another, for who has it to itself. It is one: some stores remember a key for days.
DOCTORS = "dlock:doctor"

#: How long a place stays that is not given up, in microseconds.
_PATIENCE = 5 * SECOND


def check_writes(backend: LockBackend, ttl: int) -> None:
    """Take and release a lock that is in nobody's way.

    Raises :exc:`~celery_dlock.BackendUnavailable` if the store refuses that, or does not answer.
    """
    nonce = uuid.uuid4().hex
    # A reader waits for no other reader, and leaves no token behind.
    claim = Claim(NOBODYS, f"{nonce}:0:0", nonce, ttl, mode=Mode.SHARED, begun=False)
    backend.enter(claim)
    backend.leave(claim, Outcome.OVER)


def check_shortcut(backend: LockBackend, ttl: int) -> None:
    """Take and release a key that nobody else has, as most tasks do. Raises likewise."""
    nonce = uuid.uuid4().hex
    claim = Claim(DOCTORS, f"{nonce}:0:0", nonce, ttl, mode=Mode.SHARED, wait=WaitMode.LOOK)
    backend.enter(claim)
    backend.leave(claim, Outcome.OVER)


def check_rules(backend: LockBackend, ttl: int) -> None:
    """Take a key, have another wait for it meanwhile, and renew the lease. Raises likewise.

    The other gives up before its turn: as a writer that gets the key it would leave a token behind.
    """
    nonce = uuid.uuid4().hex
    holder = Claim(DOCTORS, f"{nonce}:0:0", nonce, ttl, mode=Mode.SHARED, begun=False)
    waiting = Claim(
        *(DOCTORS, f"{nonce}:1:0", nonce, ttl), wait=WaitMode.PLACE, patience=_PATIENCE, begun=False
    )
    backend.enter(holder)
    try:
        backend.enter(waiting)
        backend.leave(waiting, Outcome.OVER)
        backend.renew([holder])
    finally:
        backend.leave(holder, Outcome.OVER)
