"""Somebody else who holds a key, and lets go when a task has met the lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from celery_dlock import lock
from celery_dlock.core.events import Contended
from tests.services.desk import Desk
from tests.services.until import until


@contextmanager
def held_until_refused(desk: Desk, key: str) -> Iterator[int]:
    """Hold *key* in another thread until a task was refused; yields the holder's token."""
    tokens: list[int] = []
    over = threading.Event()

    def hold() -> None:
        with lock(key, app=desk.app, timeout=0) as lease:
            tokens.append(lease.fencing_token)
            until("a task is refused", lambda: over.is_set() or desk.happened(Contended))

    other = threading.Thread(target=hold)
    other.start()
    try:
        until("the key is held", lambda: tokens)
        yield tokens[0]
    finally:
        over.set()
        other.join()
