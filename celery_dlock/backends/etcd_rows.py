"""Rows in etcd: a commit is one transaction, compared by revisions.

A row of a holder hangs on a lease of its process, and is gone when that is. Rows to be remembered
hang on leases that nobody keeps: the server forgets them. A transaction's revision is the number
of its commit, and a row's ``create_revision`` is that of the one that made it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from celery_dlock.backends import etcd_wire as wire
from celery_dlock.backends.base import Clock
from celery_dlock.backends.etcd_address import Address
from celery_dlock.backends.etcd_client import EtcdClient, LeaseGone, RowGone
from celery_dlock.backends.etcd_connection import rpc
from celery_dlock.backends.etcd_leases import Leases
from celery_dlock.backends.etcd_names import Names, part_of
from celery_dlock.backends.etcd_txn import LARGEST, transaction
from celery_dlock.backends.rows import Commit, Committed, Kind, Name, Row, Rows
from celery_dlock.core.lease import unsleeping
from celery_dlock.errors import BackendUnavailable

#: Names that are asked for at once.
PAGE = 5000

#: How often something is tried whose lease the server does not know.
ATTEMPTS = 3

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class EtcdRows(Rows):
    """The rows of *prefix*; *clock* replaces this host's in tests."""

    def __init__(self, address: Address, prefix: str, clock: Clock | None = None) -> None:
        self._address = address
        self._names = Names(prefix)
        self._clock = clock
        # Those from before a fork are kept: to close one is to speak on the parent's connection.
        self._sessions: dict[int, _Session] = {}

    @property
    def _session(self) -> _Session:
        pid = os.getpid()
        return self._sessions.get(pid) or self._sessions.setdefault(pid, _Session(self._address))

    def read(self, names: Sequence[Name]) -> list[Row | None]:
        found, _ = self._look(names, keys_only=False)
        return [None if kv is None else _row(kv) for kv in found]

    def commit(self, commit: Commit) -> Committed | None:
        return self._with_leases(self._commit, commit)

    def _commit(self, session: _Session, commit: Commit) -> Committed | None:
        since = unsleeping()
        held = 0 if commit.held is None else session.leases.lasting(commit.lease, since)
        remembered = {
            name: session.leases.ending(memory) for name, (_, memory) in commit.remember.items()
        }
        request = transaction(self._names, commit, held, remembered)
        try:
            answer = session.client.call("Txn", request, repeats=not commit.changes)
        except RowGone:
            return None
        except BackendUnavailable:
            if held:  # it may land after everybody has given it up
                session.leases.retire(held)
            raise
        if not answer.succeeded:
            return None
        if held:
            term = int(answer.header.raft_term)
            if session.leases.lasting(commit.lease, since, term) != held:
                raise BackendUnavailable(f"{self._address.place} has lost the lease of a new row")
        return _committed(commit, int(answer.header.revision))

    def alive(self, holders: Sequence[Name], lease: int) -> list[bool]:
        return self._with_leases(self._alive, holders, lease)

    def _alive(self, session: _Session, holders: Sequence[Name], lease: int) -> list[bool]:
        since = unsleeping()
        lasting = session.leases.lasting(lease, since)
        found, term = self._look(holders, keys_only=True)
        if found and session.leases.lasting(lease, since, term) != lasting:
            raise LeaseGone
        return [
            kv is not None and (kv.lease == lasting or self._hang(session, name, kv, lasting))
            for name, kv in zip(holders, found, strict=True)
        ]

    def _hang(self, session: _Session, name: Name, kv: Any, lease: int) -> bool:
        """Its own lease is for less time, or of a process that was this one; whether it is there
        still.
        """
        key = self._names.written(name)
        move = wire.put(key, b"", wire.on_lease(lease) + wire.KEEP_VALUE)
        request = wire.born(key, kv.create_revision) + move
        return bool(session.client.call("Txn", request, repeats=True).succeeded)

    def drop(self, holder: Name) -> None:
        (kv,), _ = self._look([holder], keys_only=True)
        if kv is not None:
            # Should the request be late, it does not take the next row of that name.
            key = self._names.written(holder)
            request = wire.born(key, kv.create_revision) + wire.delete(key)
            self._session.client.call("Txn", request, repeats=True)

    def names(self, kind: Kind, part: int | None = None) -> list[Name]:
        if kind is Kind.DUE:  # which lie in the order of their instants
            return [name for name in self._listed(kind) if part in (None, part_of(name.key))]
        return list(self._listed(kind, part))

    def keys(self, after: str | None, limit: int) -> list[str]:
        first, end = self._names.range(Kind.GUARD)
        if after is not None:
            first = self._names.written(Name(Kind.GUARD, after)) + b"\0"
        keys = self._page(first, end, limit).keys
        return [self._names.read(Kind.GUARD, key).key for key in keys]

    def due(self, limit: int) -> list[Name]:
        if limit <= 0:  # etcd takes that for no limit
            return []
        first, end = self._names.range(Kind.DUE)
        keys = self._page(first, end, limit).keys
        return [self._names.read(Kind.DUE, key) for key in keys]

    def now(self) -> int:
        """By this host's clock: etcd tells nobody the time."""
        return time.time_ns() // 1000 if self._clock is None else self._clock()

    def lease_of(self, ttl: int) -> int:
        """*ttl*: the server's whole seconds are rounded up for it."""
        return ttl

    def close(self) -> None:
        session = self._sessions.pop(os.getpid(), None)
        if session is not None:
            session.close()

    def _listed(self, kind: Kind, part: int | None = None) -> Iterator[Name]:
        first, end = self._names.range(kind, part)
        page = self._page(first, end, PAGE)
        yield from (self._names.read(kind, key) for key in page.keys)
        while page.more:
            page = self._page(page.keys[-1] + b"\0", end, PAGE, page.revision)
            yield from (self._names.read(kind, key) for key in page.keys)

    def _page(self, first: bytes, end: bytes, limit: int, revision: int = 0) -> _Page:
        """The first keys in byte order, as of that *revision*: what moves is not overlooked."""
        request = rpc.RangeRequest(
            key=first, range_end=end, limit=limit, keys_only=True, revision=revision
        )
        answer = self._session.client.call("Range", request, repeats=True)
        at = revision or int(answer.header.revision)
        return _Page([kv.key for kv in answer.kvs], answer.more, at)

    def _look(self, names: Sequence[Name], keys_only: bool) -> tuple[list[Any | None], int]:
        """What etcd has of each of *names*, and in which term it said so."""
        found: list[Any | None] = []
        term = 0
        for first in range(0, len(names), LARGEST):
            keys = map(self._names.written, names[first : first + LARGEST])
            request = b"".join(wire.look(key, keys_only) for key in keys)
            answer = self._session.client.call("Txn", request, repeats=True)
            for response in answer.responses:
                kvs = response.response_range.kvs
                found.append(kvs[0] if kvs else None)
            term = int(answer.header.raft_term)
        return found, term

    def _with_leases(self, act: Callable[[_Session, *Ts], T], *args: *Ts) -> T:
        """What *act* returns, begun anew as often as the server has lost one of our leases."""
        session = self._session
        for _ in range(ATTEMPTS):
            try:
                return act(session, *args)
            except LeaseGone:
                session.leases.gone()
        raise BackendUnavailable(f"{self._address.place} has lost every lease that it granted")


class _Page(NamedTuple):
    """Keys that were listed, whether there are more, and when that was so."""

    keys: list[bytes]
    more: bool
    revision: int


class _Session:
    """What belongs to one process."""

    def __init__(self, address: Address) -> None:
        self.client = EtcdClient(address)
        self.leases = Leases(self.client)

    def close(self) -> None:
        try:
            self.leases.close()
        except BackendUnavailable:
            pass  # then they end by themselves
        finally:
            self.client.close()


def _committed(commit: Commit, number: int) -> Committed:
    if commit.guard is None:
        return Committed(number, None)
    if not commit.changes:
        return Committed(number, commit.was)
    made = number if commit.was is None else commit.was.born
    return Committed(number, Row(commit.guard, str(number), made))


def _row(kv: Any) -> Row:
    return Row(bytes(kv.value), str(kv.mod_revision), int(kv.create_revision))
