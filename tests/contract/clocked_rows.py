"""Time for stores whose leases end with a process: holders' rows with an end, by a clock of ours.

The rows of a store of this kind say of a holder that it is there or that it is not. In production
that is the store's own doing. Over these rows a test moves the clock instead, and the engine that
reads and commits them is the one of production.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from celery_dlock.core.state import Holder
from celery_dlock.forking import PerProcess
from celery_dlock.registry import backend_class
from celery_dlock.stores.base import BackendOptions, Clock, LockBackend
from celery_dlock.stores.consensus.local_leases import LocalLeases
from celery_dlock.stores.consensus.optimistic import OptimisticBackend
from celery_dlock.stores.consensus.record import Record, decode
from celery_dlock.stores.consensus.rows import Commit, Committed, Kind, Name, Row, Rows
from celery_dlock.stores.etcd.store import EtcdBackend
from celery_dlock.stores.unreadable import UnreadableKey
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend

#: Of these a row is gone when its instant has come, which is what lies in it.
_ENDING = {Kind.HOLDER, Kind.DONE}


class ClockedRows:
    """*rows*, of which those of holders and of what is done are gone as *clock* says.

    A version row says of each lease how long it lasts after it was seen; here that is until its
    end, so that a store with a clock of its own can be compared to the instant.
    """

    def __init__(self, rows: Rows, clock: Clock) -> None:
        self._rows = rows
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def read(self, names: Sequence[Name]) -> list[Row | None]:
        rows = self._rows.read(names)
        return [row and self._seen(name, row) for name, row in zip(names, rows, strict=True)]

    def _seen(self, name: Name, row: Row) -> Row | None:
        if name.kind is Kind.VERSION_ROW:
            with suppress(UnreadableKey):
                record = decode(row.value)
                holders = self._until_their_ends(name.key, record.holders)
                return replace(row, value=replace(record, holders=tuple(holders)).encode())
        elif name.kind in _ENDING and _instant(row, self._clock() + 1) <= self._clock():
            self._rows.drop(name)
            return None
        return row

    def _until_their_ends(self, key: str, holders: Iterable[Holder]) -> list[Holder]:
        now, rows = self._clock(), self._rows.read([_row(key, holder) for holder in holders])
        return [
            holder if row is None else replace(holder, expires=_instant(row, now) - now)
            for holder, row in zip(holders, rows, strict=True)
        ]

    def commit(self, commit: Commit) -> Committed | None:
        now = self._clock()
        create, update = {**commit.create}, {**commit.update}
        create |= {name: value for name, (value, _) in commit.remember.items()}
        if commit.held is not None:
            create[commit.held[0]] = _end(now + commit.lease)
        before = _holders(commit.name, None if commit.was is None else commit.was.value)
        after = _holders(commit.name, commit.version_row)
        for owner, holder in after.items():
            if owner in before and before[owner].expires != holder.expires:
                update[_row(commit.name.key, holder)] = _end(now + holder.expires)
        return self._rows.commit(
            replace(commit, create=create, update=update, held=None, lease=0, remember={})
        )

    def alive(self, holders: Sequence[Name], lease: int) -> list[bool]:
        alive: list[bool] = []
        for name in holders:
            try:
                alive.append(self._renewed(name, lease))
            except UnreadableKey:  # a row that is there counts, whatever is in it
                alive.append(True)
        return alive

    def _renewed(self, holder: Name, lease: int) -> bool:
        version_row = Name(Kind.VERSION_ROW, holder.key)
        while True:
            (row,), (was,) = self.read([holder]), self._rows.read([version_row])
            if row is None:
                return False
            end = _end(max(_instant(row, 0), self._clock() + lease))
            value = None if was is None else was.value
            moved = Commit(version_row, was, value, update={holder: end})
            if self._rows.commit(moved) is not None:
                return True

    def lease_of(self, ttl: int) -> int:
        return ttl


def _row(key: str, holder: Holder) -> Name:
    return Name(Kind.HOLDER, key, holder.owner)


def _instant(row: Row, nonsense: int) -> int:
    """The end in *row*, or what to take for *nonsense*: a row that is there counts."""
    return int(row.value) if row.value.isdigit() else nonsense


def _end(instant: int) -> bytes:
    return str(instant).encode()


def _holders(name: Name, value: bytes | None) -> dict[str, Holder]:
    if name.kind is not Kind.VERSION_ROW or value is None:
        return {}
    record: Record = decode(value)
    return {holder.owner: holder for holder in record.holders}


class Clocked(OptimisticBackend):
    """With ``options.clock`` all leases end by that, however long the test takes."""

    def __init__(self, rows: Rows, options: BackendOptions) -> None:
        if options.clock is None:
            super().__init__(rows, options)
            return
        super().__init__(cast("Rows", ClockedRows(rows, options.clock)), options)
        made = self._own._make

        def without_time() -> Any:
            own = made()
            own.leases = LocalLeases(rows.drop, lambda: 0.0)
            return own

        self._own = PerProcess(without_time)


class ClockedEtcd(Clocked, EtcdBackend):
    """The store on etcd, over rows that go by the clock of a test."""


class ClockedZooKeeper(Clocked, ZooKeeperBackend):
    """The store on ZooKeeper, over rows that go by the clock of a test."""


CLOCKED: dict[type[LockBackend], type[LockBackend]] = {
    EtcdBackend: ClockedEtcd,
    ZooKeeperBackend: ClockedZooKeeper,
}


def open_clocked(url: str, options: BackendOptions, *, forking: bool = False) -> LockBackend:
    """As ``open_backend``, for a process that does not fork: it all ends by the options' clock."""
    store = backend_class(url)
    return CLOCKED.get(store, store).from_url(url, options)
