"""Values that are stored under a name for a while: a row each, changed by compare-and-set.

The row begins with the instant of its end, by the clocks of the hosts, for no store of this kind
deletes it by itself. One whose time is over counts as not there. It goes when somebody asks for its
name, or when a sweep tidies up.
"""

from __future__ import annotations

from functools import partial

from celery_dlock.core.backoff import CHANCE
from celery_dlock.stores.base import Clock
from celery_dlock.stores.consensus.commit import KeyMutexes, UsedKeys, read_each
from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Row, Rows
from celery_dlock.stores.unreadable import UnreadableKey, is_text

#: Of so many in a part one tidying looks at most.
BATCH = 100


class Swaps:
    """The rows of this kind of one prefix."""

    def __init__(self, rows: Rows, now: Clock) -> None:
        self._rows = rows
        self._now = now
        self._mutexes = KeyMutexes()
        self._used = UsedKeys()

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        """Put *becomes* under *name* if what stands there is *was*; what stands there now.

        Nothing is read on the chance that nothing was ever there, unless something was as this
        process last tried: a commit that fails costs the servers as much as one that succeeds.
        """
        row = Name(Kind.SWAP, name)
        if was is None and becomes is not None and name not in self._used:
            value = _written(becomes, self._now() + stays)
            if self._rows.commit(Commit(row, None, value)) is not None:
                return becomes
        attempt = partial(self._swap, row, was, becomes, stays)
        (current,) = self._mutexes.until_committed(name, attempt)
        self._used.note(name, used=current not in (None, becomes))
        return current

    def _swap(
        self, name: Name, was: bytes | None, becomes: bytes | None, stays: int
    ) -> tuple[bytes | None] | None:
        """``None`` if somebody else was faster, or what was read was stale."""
        (row,) = self._rows.read([name])
        now = self._now()
        current, value = _standing(row, now), None if row is None else row.value
        if current == was:
            current, value = becomes, _written(becomes, now + stays)
        return None if self._rows.commit(Commit(name, row, value)) is None else (current,)

    def listed(self, limit: int) -> list[tuple[str, bytes]]:
        """Up to *limit* names, and their values."""
        names = [name for name in self._rows.names(Kind.SWAP) if is_text(name.key)]
        listed: list[tuple[str, bytes]] = []
        for start in range(0, len(names), BATCH):
            for name, row in read_each(self._rows, names[start : start + BATCH]).items():
                value = _standing(row, self._now()) if row is not None and row.stamp else None
                if value is not None:
                    listed.append((name.key, value))
            if len(listed) >= limit:
                break
        return listed[:limit]

    def tidy(self, part: int) -> None:
        """Delete some of those in *part* whose time is over."""
        listed = self._rows.names(Kind.SWAP, part)
        names = CHANCE.sample(listed, min(BATCH, len(listed)))
        for name, row in read_each(self._rows, names).items():
            if row is not None and row.stamp and _standing(row, self._now()) is None:
                self._rows.commit(Commit(name, row, None))


def _written(value: bytes | None, ends: int) -> bytes | None:
    return None if value is None else b"%d %b" % (ends, value)


def _standing(row: Row | None, now: int) -> bytes | None:
    """The value in *row*, if its time is not over."""
    if row is None:
        return None
    ends, _, value = row.value.partition(b" ")
    if not ends.isdigit():
        raise UnreadableKey(f"{row.value[:100]!r} begins with no instant")
    return value if int(ends) > now else None
