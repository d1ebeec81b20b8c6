"""The store on etcd: one transaction takes a free key, and one releases it.

What it does not give: a clock. How long a message has waited, or a wake gone unanswered, goes by
the clocks of the hosts that ask. A holder's life does not: that hangs on a lease which the servers
count, in whole seconds.

A commit is one transaction, compared by revisions. A transaction's revision is the number of its
commit, and a row's ``create_revision`` is that of the one that made it. A row of a holder hangs on
a lease of its process, and is gone when that is. Rows to be remembered hang on leases that nobody
keeps: the server forgets them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, TypeVarTuple

from celery_dlock.core.lease import unsleeping
from celery_dlock.errors import BackendUnavailable
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import BackendOptions, Clock, Guarantee, Trait, wall_clock
from celery_dlock.stores.consensus.optimistic import OptimisticBackend
from celery_dlock.stores.consensus.rows import ORDERED, Commit, Committed, Kind, Name, Row, Rows
from celery_dlock.stores.etcd.address import Address, address_of
from celery_dlock.stores.etcd.client import EtcdClient, LeaseGone, RowGone, adapt_to_greenlets, rpc
from celery_dlock.stores.etcd.leases import Leases
from celery_dlock.stores.etcd.names import Names, part_of

#: Names that are asked for at once.
PAGE = 5000

#: How often something is tried whose lease the server does not know.
ATTEMPTS = 3

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class EtcdBackend(OptimisticBackend):
    """All keys of one etcd, version 3.4 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {
            Trait.MULTI_PROCESS,
            Trait.MULTI_HOST,
            Trait.DURABLE,
            Trait.LEASE_PER_TASK,
            Trait.MONOTONE_FENCING,
            Trait.STRICT_FENCING,
        }
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 2**20  # of 1.5 MiB that a server takes in one request
    forks: ClassVar[bool] = False

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``etcd://[user:password@]host[:port][,host[:port]…]``, ``etcd+https://…`` with TLS; the
        options take ``ca_cert``, ``cert_cert``, ``cert_key``, ``timeout`` and ``grpc_options``.
        """
        address = address_of(url, options.driver)
        adapt_to_greenlets()
        return cls(EtcdRows(address, options.prefix, options.clock), options)


class EtcdRows(Rows):
    """The rows of *prefix*; *clock* replaces this host's in tests."""

    def __init__(self, address: Address, prefix: str, clock: Clock | None = None) -> None:
        self._address = address
        self._names = Names(prefix)
        self._clock = clock or wall_clock
        self._sessions = PerProcess(lambda: _Session(address))

    @property
    def _session(self) -> _Session:
        return self._sessions()

    def read(self, names: Sequence[Name]) -> list[Row | None]:
        kvs, _ = self._look(names, keys_only=False)
        return [None if kv is None else _row(kv) for kv in kvs]

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
            answer = session.ask("Txn", request, repeats=not commit.changes)
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
                raise BackendUnavailable(
                    f"{self._address.place} ended the lease under which it had just stored "
                    f"{commit.name.key!r}: nothing is held. Ask again; there is another lease then"
                )
        return _committed(commit, int(answer.header.revision))

    def alive(self, holders: Sequence[Name], lease: int) -> list[bool]:
        return self._with_leases(self._alive, holders, lease)

    def _alive(self, session: _Session, holders: Sequence[Name], lease: int) -> list[bool]:
        since = unsleeping()
        lasting = session.leases.lasting(lease, since)
        kvs, term = self._look(holders, keys_only=True)
        if kvs and session.leases.lasting(lease, since, term) != lasting:
            raise LeaseGone
        return [
            kv is not None and (kv.lease == lasting or self._hang(session, name, kv, lasting))
            for name, kv in zip(holders, kvs, strict=True)
        ]

    def _hang(self, session: _Session, name: Name, kv: Any, lease: int) -> bool:
        """Its own lease is for less time, or of a process that was this one; whether it is there
        still.
        """
        key, txn = self._names.written(name), Transaction()
        txn.born(key, kv.create_revision)
        txn.move(key, lease)
        return bool(session.ask("Txn", txn.request, repeats=True).succeeded)

    def drop(self, holder: Name) -> None:
        (kv,), _ = self._look([holder], keys_only=True)
        if kv is not None:
            key, txn = self._names.written(holder), Transaction()
            # Should the request be late, it does not take the next row of that name.
            txn.born(key, kv.create_revision)
            txn.delete(key)
            self._session.ask("Txn", txn.request, repeats=True)

    def names(self, kind: Kind, part: int | None = None) -> list[Name]:
        if kind in ORDERED:  # which lie in the order of their instants
            return [name for name in self._listed(kind) if part in (None, part_of(name.key))]
        return list(self._listed(kind, part))

    def keys(self, after: str | None, limit: int) -> list[str]:
        first, end = self._names.range(Kind.VERSION_ROW)
        if after is not None:
            first = self._names.written(Name(Kind.VERSION_ROW, after)) + b"\0"
        return [name.key for name in self._first(Kind.VERSION_ROW, first, end, limit)]

    def names_of(self, kind: Kind, keys: Sequence[str]) -> list[Name]:
        names: list[Name] = []
        for start in range(0, len(keys), MAX_TXN_OPS):
            txn = Transaction()
            for key in keys[start : start + MAX_TXN_OPS]:
                txn.list(*self._names.range_of(kind, key))
            answer = self._session.ask("Txn", txn.request, repeats=True)
            for response in answer.responses:
                names += self._ours(kind, [kv.key for kv in response.response_range.kvs])
        return names

    def first(self, kind: Kind, limit: int) -> list[Name]:
        return self._first(kind, *self._names.range(kind), limit)

    def now(self) -> int:
        """By this host's clock: etcd tells nobody the time."""
        return self._clock()

    def lease_of(self, ttl: int) -> int:
        """*ttl*: the server's whole seconds are rounded up for it."""
        return ttl

    def lost_data(self) -> bool:
        return self._session.lost_data()

    def close(self) -> None:
        session = self._sessions.take()
        if session is not None:
            session.close()

    def _listed(self, kind: Kind, part: int | None = None) -> Iterator[Name]:
        first, end = self._names.range(kind, part)
        page = self._page(first, end, PAGE)
        yield from self._ours(kind, page.keys)
        while page.more:
            page = self._page(page.keys[-1] + b"\0", end, PAGE, page.revision)
            yield from self._ours(kind, page.keys)

    def _first(self, kind: Kind, first: bytes, end: bytes, limit: int) -> list[Name]:
        """The first *limit* names of ours in byte order, however many of others come before."""
        names: list[Name] = []
        more = True
        while more and len(names) < limit:  # etcd takes 0 for no limit
            page = self._page(first, end, limit)
            names += self._ours(kind, page.keys)
            first, more = (page.keys or [first])[-1] + b"\0", page.more
        return names[:limit]

    def _ours(self, kind: Kind, keys: Sequence[bytes]) -> list[Name]:
        names = (self._names.read(kind, key) for key in keys)
        return [name for name in names if name is not None]

    def _page(self, first: bytes, end: bytes, limit: int, revision: int = 0) -> _Page:
        """The first keys in byte order, as of that *revision*: what moves is not overlooked."""
        request = rpc.RangeRequest(
            key=first, range_end=end, limit=limit, keys_only=True, revision=revision
        )
        answer = self._session.ask("Range", request, repeats=True)
        at = revision or int(answer.header.revision)
        return _Page([kv.key for kv in answer.kvs], answer.more, at)

    def _look(self, names: Sequence[Name], keys_only: bool) -> tuple[list[Any | None], int]:
        """What etcd has of each of *names*, and in which term it said so."""
        kvs: list[Any | None] = []
        term = 0
        for first in range(0, len(names), MAX_TXN_OPS):
            txn = Transaction()
            for name in names[first : first + MAX_TXN_OPS]:
                txn.look(self._names.written(name), keys_only=keys_only)
            answer = self._session.ask("Txn", txn.request, repeats=True)
            for response in answer.responses:
                answered = response.response_range.kvs
                kvs.append(answered[0] if answered else None)
            term = int(answer.header.raft_term)
        return kvs, term

    def _with_leases(self, act: Callable[[_Session, *Ts], T], *args: *Ts) -> T:
        """What *act* returns, begun anew as often as the server has lost one of our leases."""
        session = self._session
        for _ in range(ATTEMPTS):
            try:
                return act(session, *args)
            except LeaseGone:
                session.leases.gone()
        raise BackendUnavailable(
            f"{self._address.place} did not know a lease that it had just granted, {ATTEMPTS} "
            "times: it loses data, or dlock_url names members of several clusters"
        )


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
        self._mutex = threading.Lock()
        self._revision = 0
        self._leader: tuple[int, int] | None = None
        self._lost_data = False

    def ask(self, name: str, request: Any, *, repeats: bool) -> Any:
        """The answer about rows. Leases are replaced if it may come from a store that was restored.

        A backup has rows of tasks that have ended since. They hang on leases of ours.
        """
        before = self._revision
        answer = self.client.call(name, request, repeats=repeats)
        if self._may_be_restored(before, answer.header):
            self.leases.replace()
        return answer

    def _may_be_restored(self, before: int, header: Any) -> bool:
        """Whether it has another leader now, or a smaller revision than was known *before*.

        Answers may come in another order than they were given.
        """
        revision, leader = int(header.revision), (int(header.cluster_id), int(header.raft_term))
        with self._mutex:
            went_back = revision < before <= self._revision  # or another thread has noticed
            self._lost_data = self._lost_data or went_back
            self._revision = revision if went_back else max(revision, self._revision)
            was, self._leader = self._leader, leader
            return went_back or was not in (None, leader)

    def lost_data(self) -> bool:
        """As :meth:`Rows.lost_data`."""
        with self._mutex:
            lost, self._lost_data = self._lost_data, False
            return lost

    def close(self) -> None:
        try:
            self.leases.close()
        except BackendUnavailable:
            pass  # then they end by themselves
        finally:
            self.client.close()


def _committed(commit: Commit, number: int) -> Committed:
    if commit.version_row is None:
        return Committed(number, None)
    if not commit.changes:
        return Committed(number, commit.was)
    made = number if commit.was is None else commit.was.born
    return Committed(number, Row(commit.version_row, str(number), made))


def _row(kv: Any) -> Row:
    return Row(bytes(kv.value), str(kv.mod_revision), int(kv.create_revision))


#: What a server takes in one transaction unless ``--max-txn-ops`` says otherwise.
MAX_TXN_OPS = 128

_CREATED, _CHANGED = rpc.Compare.CREATE, rpc.Compare.MOD
_EQUAL, _GREATER = rpc.Compare.EQUAL, rpc.Compare.GREATER


class Transaction:
    """A request in the making: its changes happen if all of its conditions hold.

    Parts are added in place, for protobuf copies a message that is handed to another one.
    """

    def __init__(self) -> None:
        self.request: Any = rpc.TxnRequest()
        self._condition = self.request.compare.add
        self._change = self.request.success.add

    def absent(self, key: bytes) -> None:
        self._condition(key=key, target=_CREATED, result=_EQUAL, create_revision=0)

    def present(self, key: bytes) -> None:
        self._condition(key=key, target=_CREATED, result=_GREATER, create_revision=0)

    def born(self, key: bytes, revision: int) -> None:
        """*key* is there, and is still the one that was made by *revision*."""
        self._condition(key=key, target=_CREATED, result=_EQUAL, create_revision=revision)

    def unchanged(self, key: bytes, revision: int) -> None:
        """*key* is as *revision* has left it."""
        self._condition(key=key, target=_CHANGED, result=_EQUAL, mod_revision=revision)

    def put(self, key: bytes, value: bytes, lease: int = 0) -> None:
        put = self._change().request_put
        put.key, put.value, put.lease = key, value, lease

    def update(self, key: bytes, value: bytes) -> None:
        """Put what is there already: a lease that it has, it keeps."""
        put = self._change().request_put
        put.key, put.value, put.ignore_lease = key, value, True

    def move(self, key: bytes, lease: int) -> None:
        """Hang what is there already on another lease."""
        put = self._change().request_put
        put.key, put.lease, put.ignore_value = key, lease, True

    def delete(self, key: bytes) -> None:
        self._change().request_delete_range.key = key

    def look(self, key: bytes, *, keys_only: bool) -> None:
        look = self._change().request_range
        look.key, look.keys_only = key, keys_only

    def list(self, first: bytes, end: bytes) -> None:
        look = self._change().request_range
        look.key, look.range_end, look.keys_only = first, end, True


def transaction(names: Names, commit: Commit, held: int, remembered: Mapping[Name, int]) -> Any:
    """The request for *commit*, whose rows hang on the leases *held* and *remembered*.

    Raises :exc:`ValueError` when it is more than etcd takes at once.
    """
    txn = Transaction()
    _rows(txn, names, commit, held, remembered)
    version_row = names.written(commit.name)
    if commit.was is None:
        txn.absent(version_row)
    else:
        txn.unchanged(version_row, int(commit.was.stamp))
    if commit.version_row is None:
        if commit.was is not None:
            txn.delete(version_row)
    elif commit.changes:
        txn.put(version_row, commit.version_row)
    conditions, changes = len(txn.request.compare), len(txn.request.success)
    if max(conditions, changes) > MAX_TXN_OPS:
        raise ValueError(
            f"a commit of {conditions} conditions and {changes} changes for "
            f"{commit.name.key!r}; etcd takes {MAX_TXN_OPS} of each"
        )
    return txn.request


def _rows(
    txn: Transaction, names: Names, commit: Commit, held: int, remembered: Mapping[Name, int]
) -> None:
    """Conditions and changes of all rows but the version row."""
    written = names.written
    for name in commit.absent:
        txn.absent(written(name))
    for name, value in commit.create.items():
        txn.put(written(name), value)
    for name, value in commit.update.items():  # what is gone is not made again
        txn.update(written(name), value)
    for name in commit.delete:
        key = written(name)
        # Without this a delete that comes late takes what another one has made since.
        txn.present(key)
        txn.delete(key)
    if commit.held is not None:
        name, value = commit.held
        key = written(name)
        txn.absent(key)
        txn.put(key, value, held)
    for name, (value, _) in commit.remember.items():
        txn.put(written(name), value, remembered[name])
