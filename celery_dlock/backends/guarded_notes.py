"""Notes beside a key: a row each, and one more, the bar, by which they are guarded.

The bar says the largest token that has written, and every write moves it, as every change of a key
moves its guard. Once made it stays, so that a smaller token is refused for ever. The key's own
guard has no part in this: who notes something is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from celery_dlock.backends.guarded_commit import PATIENCE
from celery_dlock.backends.guarded_turns import Turns
from celery_dlock.backends.record import UnreadableKey
from celery_dlock.backends.rows import Commit, Kind, Name, Row, Rows

#: How much goes into one commit: of etcd's 128 parts, and in bytes of ZooKeeper's megabyte.
MOST = 100
LARGEST = 500_000

Texts = Mapping[str, bytes | None]


class Notes:
    """The notes of one store's keys."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._turns = Turns()

    def write(self, key: str, token: int, notes: Texts) -> bool:
        """All or none of what one commit takes; more than that is written step by step."""
        return all(
            self._turns.until_committed(key, partial(self._write, key, token, part), PATIENCE)
            for part in _parts(notes)
        )

    def _write(self, key: str, token: int, notes: Texts) -> bool | None:
        """``None`` if somebody else was faster."""
        names = [_note(key, name) for name in notes]
        bar, *there = self._rows.read([_bar(key), *names])
        if bar is not None and token < _token(bar):
            return False
        commit = Commit(_bar(key), bar, str(token).encode())
        for name, text, row in zip(names, notes.values(), there, strict=True):
            if text is not None and row is None:
                commit.create[name] = text
            elif text is not None:
                commit.update[name] = text
            elif row is not None:
                commit.delete.add(name)
        return None if self._rows.commit(commit) is None else True

    def read(self, key: str) -> dict[str, bytes]:
        """As they stood at one instant, after everything of which its writer had been told."""
        return self._turns.until_committed(key, lambda: self._read(key), PATIENCE)

    def _read(self, key: str) -> dict[str, bytes] | None:
        (bar,) = self._rows.read([_bar(key)])
        # Without a bar nobody has ever written: there is no need to look through all notes.
        names = [name for name in self._rows.names(Kind.NOTE) if name.key == key] if bar else []
        rows = zip(names, self._rows.read(names), strict=True)
        found = {name.part: row.value for name, row in rows if row is not None}
        still = Commit(_bar(key), bar, None if bar is None else bar.value)
        return None if self._rows.commit(still) is None else found


def _parts(notes: Texts) -> Iterator[dict[str, bytes | None]]:
    """What is written one after the other; at least one, which may be nothing."""
    part, size = dict[str, bytes | None](), 0
    for name, text in notes.items():
        grown = size + len(name) + len(text or b"")
        if len(part) == MOST or (part and grown > LARGEST):
            yield part
            part, grown = {}, len(name) + len(text or b"")
        part[name], size = text, grown
    yield part


def _bar(key: str) -> Name:
    return Name(Kind.BAR, key)


def _note(key: str, name: str) -> Name:
    return Name(Kind.NOTE, key, name)


def _token(bar: Row) -> int:
    try:
        return int(bar.value)
    except ValueError as exc:
        raise UnreadableKey(f"not a token: {bar.value!r}") from exc
