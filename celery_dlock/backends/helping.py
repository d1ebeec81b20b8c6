"""What a helper does: use the store as it is told, until nobody tells it any more."""

from __future__ import annotations

import pickle
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from celery_dlock.backends.base import LockBackend
from celery_dlock.errors import BackendUnavailable


def serve(descriptor: int) -> None:
    """Serve at the socket *descriptor*; what comes first says how the store is built."""
    # Whoever stops a whole service means the worker, which has something to say until its end.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    with Connection(descriptor) as connection, suppress(OSError, EOFError):
        store, url, options = pickle.loads(connection.recv_bytes())
        backend: LockBackend = store.from_url(url, options)
        try:
            while True:
                name, args, options = connection.recv()
                connection.send_bytes(_answer(backend, name, args, options))
        finally:
            backend.close()


def _answer(
    backend: LockBackend, name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> bytes:
    try:
        return pickle.dumps((True, getattr(backend, name)(*args, **options)))
    except Exception as exc:
        with suppress(Exception):
            return pickle.dumps((False, exc))
        return pickle.dumps((False, BackendUnavailable(f"the store failed: {exc!r}")))
