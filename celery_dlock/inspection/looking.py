"""Looking at many keys of which one cannot be read: that one is named, and the others are shown.

A store fails for all keys of a look when one makes no sense to it, which is right for a task and
wrong for a list: who looks for the key that is broken must not be shown nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_dlock.backends.base import LockBackend
from celery_dlock.backends.unreadable import KeysUnavailable
from celery_dlock.core.state import KeyState
from celery_dlock.errors import BackendUnavailable

#: A store that cannot tell of more keys than this at a time is away, whatever it says.
MOST = 10

#: Nobody holds it, so any store that answers can tell of it.
_NOBODYS = "dlock:nobody"


def look(backend: LockBackend, keys: Sequence[str]) -> list[KeyState | BackendUnavailable]:
    """The state of each of *keys*, or why that one cannot be read.

    Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer.
    """
    try:
        return [*backend.look(keys)]
    except KeysUnavailable as exc:
        others = [key for key in keys if key not in exc.keys]
        told = dict(zip(others, look(backend, others), strict=True))
        return [told.get(key, exc) for key in keys]
    except BackendUnavailable as exc:
        if _is_of_the_network(exc):
            raise  # who has waited for one answer in vain does not wait for another
        backend.look([_NOBODYS])
    failed = 0

    def part(some: Sequence[str]) -> list[KeyState | BackendUnavailable]:
        nonlocal failed
        try:
            return [*backend.look(some)]
        except BackendUnavailable as exc:
            if len(some) == 1:
                failed += 1
                if failed > MOST:
                    raise
                return [exc]
        middle = len(some) // 2
        return part(some[:middle]) + part(some[middle:])

    return part(keys)


def _is_of_the_network(error: BaseException | None) -> bool:
    """Whether no answer came, so that it cannot be a key that is wrong.

    ``False`` where that is not known: not all drivers tell.
    """
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__ or error.__context__
    return False
