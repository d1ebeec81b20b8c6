"""For how long people had keys on hold, which nobody who waits has to bear.

Whoever waits at a key that is on hold loses no patience; the state of that key says so. But a task
with several keys may wait at one of them for others that wait at the one on hold. When its time is
up, it asks here whether a hold has taken it. A hold that has ended is in no state any more, so the
last periods of each key stand in a register of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, End, Ending
from celery_dlock.stores.base import LockBackend
from celery_dlock.stores.unreadable import NONSENSE

#: For so long a period stays in the register after its end, and so many of them at most.
STAYS, MOST = 7 * 86_400 * SECOND, 20

#: A hold from one instant to another, in microseconds on the store's clock.
Period = tuple[int, int]


def note_period(store: LockBackend, key: str, lasts: int) -> None:
    """*key* was put on hold just now, for so many microseconds; with 0 its hold has ended.

    Raises :exc:`~celery_dlock.BackendUnavailable`.
    """
    now, text = store.now(), _text(store, key)
    until = now + lasts
    while True:
        periods = [period for period in _periods(text) if period[1] > now - STAYS]
        if periods and periods[-1][1] >= now:
            begins, _ = periods.pop()
            periods.append((begins, until))
        elif lasts:
            periods.append((now, until))
        becomes = json.dumps(periods[-MOST:]).encode()
        text = store.swap(_name(key), text, becomes, lasts + STAYS)
        if text == becomes:
            return


def time_on_hold(
    store: LockBackend, keys: Iterable[str], begins: int, ends: int | None = None
) -> int:
    """Microseconds for which any of *keys* was on hold between these instants.

    Without an end those count, too, for which one is going to be. Raises
    :exc:`~celery_dlock.BackendUnavailable`.
    """
    periods = sorted(p for key in keys for p in _periods(_text(store, key)))
    total, counted_until = 0, begins
    for period in periods:
        since, until = period if ends is None else (period[0], min(period[1], ends))
        total += max(0, until - max(since, counted_until))
        counted_until = max(counted_until, until)
    return total


def more_time(store: LockBackend, claim: Claim, end: End, claims: Sequence[Claim]) -> int:
    """Microseconds for which *claim*, which was woken to time out, has to go on waiting.

    For that time people had one of its task's *claims* on hold; 0 where its time is up. Raises
    :exc:`~celery_dlock.BackendUnavailable`.
    """
    if end.ending is not Ending.TIMED_OUT or len(claims) < 2:
        return 0
    (state,) = store.look([claim.key])
    turn = next((turn for turn in state.grants if turn.task == claim.task), None)
    if turn is None or turn.arrived is None:
        return 0
    on_hold = time_on_hold(store, (other.key for other in claims), turn.arrived)
    return max(0, turn.arrived + claim.gives_up + on_hold - store.now()) if on_hold else 0


def _name(key: str) -> str:
    return f"on hold|{key}"


def _text(store: LockBackend, key: str) -> bytes | None:
    return store.swap(_name(key), None, None, 0)


def _periods(text: bytes | None) -> list[Period]:
    """What the register says; what cannot be read has taken nobody's time."""
    try:
        return (
            [] if text is None else [(int(since), int(until)) for since, until in json.loads(text)]
        )
    except NONSENSE:
        return []
