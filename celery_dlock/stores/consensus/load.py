"""Reads what one operation may see of a key: its version row, who is alive, the part of the queue.

The rows are read in flights and may change in between. Nothing is believed until a commit has
confirmed that the version row still stands, because no other row of a key changes without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from celery_dlock.core.operations import OnDeadLetter, Operation
from celery_dlock.core.state import WINDOW, Holder, KeyState, Waiting
from celery_dlock.stores.base import live
from celery_dlock.stores.consensus.record import (
    Record,
    as_state,
    decode,
    decode_dead,
    decode_page,
    number_in,
    page_of,
)
from celery_dlock.stores.consensus.rows import Kind, Name, Row, Rows

#: How many pages are read at a time, and after how many a part of the window is enough. The third
#: bounds how many entries and pages one operation may clear away or wake, because a commit in etcd
#: has at most 128 parts.
PAGES_AT_ONCE = 2
PAGES_OF_A_LIST = 32
PAGES_ENOUGH = 16
PARTS_ENOUGH = 110


@dataclass(slots=True)
class Loaded:
    """What was read of one key at *now*.

    ``rows`` are the rows of its holders that are there, by owner; ``pages`` the pages that were
    looked at, by number, empty for one that is not there; ``unread`` is the first rank of the
    queue behind them, if there may be more. ``done`` is the row that remembers the asking task,
    ``dead`` that of its dead letter.
    """

    now: int
    version_row: Row | None = None
    record: Record = field(default_factory=Record)
    state: KeyState = field(default_factory=KeyState)
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    pages: dict[int, tuple[Waiting, ...]] = field(default_factory=dict[int, tuple[Waiting, ...]])
    unread: int | None = None
    done: Row | None = None
    dead: Row | None = None


class Loader:
    """Reads keys. With *remembers* a row of a finished task counts only if that says so."""

    def __init__(self, rows: Rows, remembers: Callable[[Row, int], bool]) -> None:
        self._rows = rows
        self._remembers = remembers

    def load(self, operation: Operation[object], now: int) -> Loaded:
        """What *operation* may see. Raises :exc:`~celery_dlock.stores.unreadable.UnreadableKey`."""
        claim = operation.claim
        key, task = claim.key, claim.task
        named = [name for name in (task, claim.successor) if name]
        places = [Name(Kind.PLACE, key, name) for name in named]
        version_row, done, dead, *ranks = self._rows.read(
            [
                Name(Kind.VERSION_ROW, key),
                Name(Kind.DONE, key, task),
                Name(Kind.DEAD, key, task),
                *places,
            ]
        )
        loaded = Loaded(now, version_row, done=done, dead=dead)
        if version_row is not None:
            loaded.record = decode(version_row.value)
            own = {page_of(number_in(row)) for row in ranks if row is not None}
            pages = set(own)
            if task:  # the head of the queue, and the page on which the next one comes to wait
                pages |= {*islice(loaded.record.pages(), PAGES_AT_ONCE)}
                pages.add(page_of(loaded.record.last + 1))
            self._load_holders(key, loaded, pages)
            self._load_queue(key, loaded, own, set(named))
        if done is not None and self._remembers(done, now):
            loaded.state = replace(loaded.state, done=frozenset({task}))
        if dead is not None and isinstance(operation, OnDeadLetter):
            loaded.state = replace(loaded.state, dead=(decode_dead(dead.value)[0],))
        return loaded

    def load_first(self, key: str, now: int, limit: int | None) -> Loaded:
        """*key* with the first *limit* of its queue, or all of it."""
        (version_row,) = self._rows.read([Name(Kind.VERSION_ROW, key)])
        loaded = Loaded(now, version_row)
        if version_row is not None:
            loaded.record = decode(version_row.value)
            self._load_holders(key, loaded, set())
            pages, entries = loaded.record.pages(), list[Waiting]()
            while limit is None or len(entries) < limit:
                batch = list(islice(pages, PAGES_OF_A_LIST))
                if not batch:
                    break
                self.load_pages(key, loaded, batch)
                entries += [entry for number in batch for entry in loaded.pages[number]]
            loaded.state = _state(loaded, entries[:limit])
        return loaded

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        """The entry of *task* in the queue, and how many may stand before it, by their ranks."""
        names = [Name(Kind.VERSION_ROW, key), Name(Kind.PLACE, key, task)]
        version_row, place = self._rows.read(names)
        if version_row is None or place is None:
            return None
        rank = number_in(place)
        (page,) = self._rows.read([_page(key, page_of(rank))])
        entry = next((entry for entry in _entries(page) if entry.task == task), None)
        return None if entry is None else (entry, rank - decode(version_row.value).first)

    def load_heads(self, keys: Sequence[str], now: int) -> list[KeyState]:
        """Each of *keys* with the head of its queue; most often that takes two flights for all.

        The rows of one key may be of two moments: nothing is to be decided by them.
        """
        version_rows = self._rows.read([Name(Kind.VERSION_ROW, key) for key in keys])
        heads = [
            _Head(key, Loaded(now, version_row))
            for key, version_row in zip(keys, version_rows, strict=True)
        ]
        while asked := [(head, name) for head in heads for name in head.asks()]:
            read = self._rows.read([name for _, name in asked])
            for (head, name), row in zip(asked, read, strict=True):
                head.hears(name, row)
        return [head.state() for head in heads]

    def load_pages(self, key: str, loaded: Loaded, numbers: Iterable[int]) -> None:
        """Add the pages *numbers* to what was *loaded*, in one flight."""
        missing = [number for number in numbers if number not in loaded.pages]
        if not missing:
            return
        read = self._rows.read([_page(key, number) for number in missing])
        loaded.pages |= zip(missing, map(_entries, read), strict=True)

    def _load_holders(self, key: str, loaded: Loaded, numbers: set[int]) -> None:
        """The rows of the holders that are there, and in the same flight the pages *numbers*."""
        owners, pages = [holder.owner for holder in loaded.record.holders], sorted(numbers)
        held = [Name(Kind.HOLDER, key, owner) for owner in owners]
        read = self._rows.read([*held, *(_page(key, number) for number in pages)])
        rows = zip(owners, read[: len(held)], strict=True)
        loaded.rows = {owner: row for owner, row in rows if row is not None}
        loaded.pages = dict(zip(pages, map(_entries, read[len(held) :]), strict=True))

    def _load_queue(self, key: str, loaded: Loaded, own: set[int], named: set[str]) -> None:
        """The first entries that are alive, and those of the tasks *named* on the pages *own*."""
        pages = loaded.record.pages()
        window = _Window(loaded.now, {h.task for h in _holders(loaded) if h.expires > loaded.now})
        left: int | None = None
        while left is None and not window.enough:
            batch = list(islice(pages, PAGES_AT_ONCE))
            if not batch:
                break
            self.load_pages(key, loaded, batch)
            left = next(
                (number for number in batch if not window.takes(loaded.pages[number])), None
            )
        left = next(pages, None) if left is None else left
        loaded.unread = None if left is None else left * WINDOW
        far = [
            entry
            for number in own
            for entry in loaded.pages[number]
            if left is not None and number >= left and entry.task in named
        ]
        loaded.state = _state(loaded, [*window.entries, *sorted(far, key=lambda e: e.rank)])


@dataclass(slots=True)
class _Window:
    """As much of the head of a queue as one operation may see, while the tasks *running* run."""

    now: int
    running: set[str]
    entries: list[Waiting] = field(default_factory=list[Waiting])
    _alive: int = 0
    _waits: bool = False
    _parts: int = 0
    _pages: int = 0

    @property
    def enough(self) -> bool:
        return self._alive >= WINDOW or (self._waits and self._pages >= PAGES_ENOUGH)

    def takes(self, page: tuple[Waiting, ...]) -> bool:
        """Whether the next page still fits in."""
        parts = self._parts + len(page) + bool(page)
        if parts > PARTS_ENOUGH:
            return False
        alive = [e.task for e in page if e.expires is None or e.expires > self.now]
        self.entries += page
        self._alive += len(alive)
        self._waits = self._waits or not self.running.issuperset(alive)
        self._parts, self._pages = parts, self._pages + 1
        return True


class _Head:
    """One key of many that are looked at together; a queue is read until its head is known."""

    def __init__(self, key: str, loaded: Loaded) -> None:
        self._key = key
        self._loaded = loaded
        if loaded.version_row is not None:
            loaded.record = decode(loaded.version_row.value)
        self._pages = islice(loaded.record.pages(), PAGES_ENOUGH)
        self._holders = [Name(Kind.HOLDER, key, h.owner) for h in loaded.record.holders]
        self._waiting: list[Waiting] = []

    def asks(self) -> list[Name]:
        """What is to be read next; nothing at the end."""
        holders, self._holders = self._holders, []
        pages = islice(self._pages, PAGES_AT_ONCE) if len(self._waiting) < WINDOW else ()
        return [*holders, *(_page(self._key, number) for number in pages)]

    def hears(self, name: Name, row: Row | None) -> None:
        if name.kind is Kind.PAGE:
            self._waiting += live(_entries(row), self._loaded.now)
        elif row is not None:
            self._loaded.rows[name.part] = row

    def state(self) -> KeyState:
        return _state(self._loaded, self._waiting[:WINDOW])


def _state(loaded: Loaded, waiting: list[Waiting]) -> KeyState:
    return as_state(loaded.record, _holders(loaded), waiting, loaded.now)


def _holders(loaded: Loaded) -> tuple[Holder, ...]:
    return tuple(_seen(holder, loaded.record, loaded) for holder in loaded.record.holders)


def _seen(holder: Holder, record: Record, loaded: Loaded) -> Holder:
    """*holder* with its token, and with an instant: leased ones begin anew whenever seen."""
    row, ends = loaded.rows.get(holder.owner), holder.expires
    if holder.owner in record.leased and row is not None:
        ends = loaded.now + ends
    elif holder.owner in record.leased:
        # Since when it is gone is not known: since nobody came to look at the key, it may be.
        ends = loaded.now if record.due is None else min(loaded.now, record.due)
    token = row.born if row is not None and holder.token else 0
    return replace(holder, token=token, expires=ends)


def _page(key: str, number: int) -> Name:
    return Name(Kind.PAGE, key, str(number))


def _entries(row: Row | None) -> tuple[Waiting, ...]:
    return () if row is None else decode_page(row.value)
