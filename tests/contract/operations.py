"""What can be done on a key for which many wait, for those who count what each operation costs."""

from __future__ import annotations

from collections.abc import Callable

from celery_dlock.core.state import Outcome
from celery_dlock.stores.base import NoteStore
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken


def operations(
    backend: NoteStore, waiting: int, *, ttl: float, noted: str
) -> dict[str, Callable[[], object]]:
    """What is done in this order on a key for which so many wait, with leases of *ttl* seconds.
    Notes are beside the key *noted*. A sweep finds something due some seconds after the release.
    """
    key = f"{waiting} wait"
    holder, last = claim("holder", key=key, ttl=ttl), f"w{waiting - 1} of {waiting}"
    running(backend.enter(holder))
    park(backend, *(f"w{n} of {waiting}:0:0" for n in range(waiting)), key=key, ttl=ttl)
    first = claim(f"w0 of {waiting}:0:0", key=key, wait=QUEUE, ttl=ttl)
    newcomer = claim("new", key=key, wait=QUEUE, ttl=ttl)
    return {
        "look": lambda: backend.look([key]),
        "keys": lambda: backend.keys(waiting=True),
        "parked": lambda: backend.parked([last, "unknown"]),
        "position": lambda: backend.position(key, f"{last}:0:0"),
        "peek": lambda: backend.peek(key, 10),
        "dead": lambda: backend.dead(10) + backend.dead_of(["unknown"]),
        "sweep": backend.sweep,
        "park": lambda: backend.enter(newcomer, b"message"),
        "release": lambda: woken(backend.leave(holder, Outcome.DONE)),
        "turn": lambda: running(backend.enter(first, b"message")),
        "note": lambda: backend.note(noted, 6, {"a": b"b", "b": b"b"}),
        "notes": lambda: backend.notes(noted),
    }
