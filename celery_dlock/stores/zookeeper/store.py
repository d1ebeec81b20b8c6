"""The store on ZooKeeper: what was confirmed stays, and a token is the number of a transaction.

What it does not give: a lease time for each task. A process has one session; every lock of it is
held for as long as that lives, and all are lost with it. Nor speed: each commit waits for the disks
of a majority, and without a majority nothing is taken or released.

Rows are nodes: a commit is one multi-operation, a flight one pipeline.

The lease of a process is its session. The leader ends a session no sooner than its timeout after
it has last heard of it, but what a follower hears it reports every half tick, and what it heard
last is lost with it. Before that, a client that has nothing to say pings every sixth of the timeout
(:mod:`~celery_dlock.stores.zookeeper.client`), and a timeout is two ticks or more. So a session
outlives each answer by 1 - 1/6 - 1/4 of its timeout at least, and a lease is half of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

from kazoo.exceptions import KazooException, NoNodeError

from celery_dlock.core.lease import SECOND
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, Guarantee, Trait
from celery_dlock.stores.consensus.optimistic import OptimisticBackend
from celery_dlock.stores.consensus.rows import PARTS, Commit, Committed, Kind, Name, Row, Rows
from celery_dlock.stores.zookeeper.client import (
    Client,
    Session,
    ZooKeeperAddress,
    address_of,
    children,
    ephemerals,
    exists,
    get,
)
from celery_dlock.stores.zookeeper.forgetting import Forgetting, ServerClock, host_time
from celery_dlock.stores.zookeeper.rows import (
    FolderMissing,
    Layout,
    MultiOperation,
    is_ours,
    long_name,
    name_of,
    part_of,
    row_of,
)


class ZooKeeperBackend(OptimisticBackend):
    """All keys of one prefix below one folder of a ZooKeeper, version 3.5 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {
            Trait.MULTI_PROCESS,
            Trait.MULTI_HOST,
            Trait.DURABLE,
            Trait.MONOTONE_FENCING,
            Trait.STRICT_FENCING,
        }
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 2**19  # half of what a server takes in one request

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``zookeeper://[user:password@]host[:port][,host[:port]…][/folder]``."""
        return cls(ZooKeeperRows(address_of(url, options), options), options)


class ZooKeeperRows(Rows):
    """The rows of one prefix below one folder. Only those of kind ``DONE`` can be remembered."""

    def __init__(self, address: ZooKeeperAddress, options: BackendOptions) -> None:
        self._layout = Layout(address.chroot, options.prefix)
        self._client = Client(address, self._drop_unknown)
        self._is_known: Callable[[Name], bool] | None = None
        self._clock = ServerClock()
        self._forgetting = Forgetting(self._layout)

    def read(self, names: Sequence[Name]) -> list[Row | None]:
        if not names:
            return []
        paths = [self._layout.path(name) for name in names]
        with self._client.answers() as session:
            nodes = session.flight(get(path) for path in paths)
            return [
                None if node is None else row_of(name, path, *node)
                for name, path, node in zip(names, paths, nodes, strict=True)
            ]

    def commit(self, commit: Commit) -> Committed | None:
        with self._client.answers() as session:
            try:
                committed = self._try(session, commit)
            except FolderMissing as missing:
                for folder in missing.folders:
                    session.make_folder(folder)
                committed = self._try(session, commit)
            if committed is not None and commit.remember:
                self._remembered(session, commit)
            return committed

    def _try(self, session: Session, commit: Commit) -> Committed | None:
        if commit.remember and not self._clock.heard_of:
            self._ask_the_time(session)  # what is done must not be forgotten too early
        sent = host_time()
        plan = MultiOperation(self._layout, commit, self.now())
        (results,) = session.flight([plan.send])
        committed = plan.outcome(results)
        if committed is not None and (stat := plan.stat(results)) is not None:
            self._clock.heard(sent, stat.mtime, host_time())
        return committed

    def _ask_the_time(self, session: Session) -> None:
        sent = host_time()
        (stat,) = session.flight([lambda kazoo: kazoo.set_async(self._layout.root, b"")])
        if stat is not None:
            self._clock.heard(sent, stat.mtime, host_time())

    def _remembered(self, session: Session, commit: Commit) -> None:
        """See to it that it is forgotten, some day; the commit has happened, whatever comes."""
        now = self.now()
        for name, (_, time) in commit.remember.items():
            self._forgetting.expect(name, now + time)
        part = part_of(commit.name)
        with suppress(BackendUnavailable, KazooException):
            if batch := self._forgetting.overdue(part, now):
                self._forgetting.forget(session, part, batch)

    def alive(self, holders: Sequence[Name], lease: int) -> list[bool]:
        """The lease is that of the session, if it is long enough; of others' nothing is known.

        A commit that changes nothing goes before the question. A leader that has lost its
        followers would answer a ``sync``; this it cannot do alone.
        """
        if not holders:
            return []
        with self._client.answers() as session:
            (confirmed, *_), *stats = session.flight(
                [self._confirm, *(exists(self._layout.path(name)) for name in holders)]
            )
            if isinstance(confirmed, KazooException) and not isinstance(confirmed, NoNodeError):
                raise confirmed
            enough = lease <= _lease(session)  # it may have been granted anew, for less time
            owners = [None if stat is None else stat.ephemeralOwner for stat in stats]
            return [enough and owner == session.id for owner in owners]

    def _confirm(self, kazoo: Any) -> Any:
        transaction = kazoo.transaction()
        transaction.check(self._layout.root, -1)
        return transaction.commit_async()

    def drop(self, holder: Name) -> None:
        path = self._layout.path(holder)
        with self._client.answers() as session:
            session.flight([lambda kazoo: kazoo.delete_async(path)])

    def know_holders(self, is_known: Callable[[Name], bool]) -> None:
        self._is_known = is_known

    def _drop_unknown(self, session: Session) -> None:
        """Drop holders' rows of this session whose tasks have ended; the servers are there again.

        Restored from a backup they have such rows, which would stay for as long as the session. The
        session is the same only if the servers have seen as much as this process.
        """
        if self._is_known is None:
            return
        with suppress(BackendUnavailable, KazooException, OSError):  # the next return asks again
            (paths,) = session.flight([ephemerals(f"{self._layout.root}/{Kind.HOLDER}/")])
            for name in self._named(session, Kind.HOLDER, paths or ()):
                if not self._is_known(name):
                    self.drop(name)

    def names(self, kind: Kind, part: int | None = None) -> list[Name]:
        names = self._listed(kind, self._layout.folders(kind, part))
        return [name for name in names if part is None or part_of(name) == part]

    def _listed(self, kind: Kind, folders: Sequence[str]) -> list[Name]:
        with self._client.answers() as session:
            listed = session.flight(children(folder) for folder in folders)
            by_folder = zip(folders, (files or () for files in listed), strict=True)
            paths = [
                f"{folder}/{file}"
                for folder, files in by_folder
                for file in files
                if is_ours(kind, file)
            ]
            return self._named(session, kind, paths)

    def keys(self, after: str | None, limit: int) -> list[str]:
        """Folder by folder, and in each by name; it looks into more at a time, the fewer it has."""
        last = (-1, "") if after is None else (part_of(Name(Kind.VERSION_ROW, after)), after)
        keys, part, size = list[str](), max(0, last[0]), 1
        while part < PARTS and len(keys) < limit:
            parts = range(part, min(part + size, PARTS))
            names = self._listed(
                Kind.VERSION_ROW, [self._layout.folder(Kind.VERSION_ROW, n) for n in parts]
            )
            places = sorted((part_of(name), name.key) for name in names)
            keys += [key for place, key in places if (place, key) > last]
            part, size = part + size, size * 2
        return keys

    def names_of(self, kind: Kind, keys: Sequence[str]) -> list[Name]:
        """It reads the names in the folder of each: a 64th of all of that kind."""
        folders = {self._layout.folder(kind, part_of(Name(kind, key))) for key in keys}
        wanted = set(keys)
        return [name for name in self._listed(kind, sorted(folders)) if name.key in wanted]

    def first(self, kind: Kind, limit: int) -> list[Name]:
        folder = self._layout.folder(kind, 0)
        with self._client.answers() as session:
            (files,) = session.flight([children(folder)])
            ours = (file for file in files or () if is_ours(kind, file))
            first = heapq.nsmallest(limit, ours)
            return self._named(session, kind, [f"{folder}/{file}" for file in first])

    def _named(self, session: Session, kind: Kind, paths: Sequence[str]) -> list[Name]:
        """The names of nodes that were listed; one that is gone by now may be left out."""
        names = [name_of(kind, path.rpartition("/")[2]) for path in paths]
        long = [path for path, name in zip(paths, names, strict=True) if name is None]
        nodes = session.flight(get(path) for path in long) if long else []
        long_names = [long_name(kind, node[0]) for node in nodes if node is not None]
        return [name for name in (*names, *long_names) if name is not None]

    def lost_data(self) -> bool:
        return self._client.lost_data()

    def tidy(self, part: int) -> None:
        with self._client.answers() as session:
            self._forgetting.tidy(session, part)

    def now(self) -> int:
        return self._clock.now()

    def lease_of(self, ttl: int) -> int:
        """Half of the timeout that this process's session was granted, whatever *ttl* is."""
        with self._client.answers() as session:
            return _lease(session)

    def granted(self) -> float | None:
        return self._client.granted()

    def certain(self, timeout: float) -> bool:
        session = self._client.session()
        return session is None or session.timeout is None or session.connected(timeout)

    def close(self) -> None:
        self._client.close()


def _lease(session: Session) -> int:
    """For how many microseconds a session is trusted; the first one may have to be waited for."""
    if session.timeout is None:
        session.wait()
    assert session.timeout is not None
    return int(session.timeout / 2 * SECOND)
