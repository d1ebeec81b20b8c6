"""A commit as one multi-operation: what is in it, and what its outcome means.

A guard has a child, called by its generation and made with it; no guard can be deleted without its
child. So an operation on that child succeeds only with the guard that was read, although the one
made anew may have come to the same version. The guard is written last of all in its making: the
answer to a write tells the number of the commit.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
)
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from celery_dlock.backends.rows import Commit, Committed, Kind, Name, Row
from celery_dlock.backends.zookeeper_names import Layout, as_read, part_of, written
from celery_dlock.errors import BackendUnavailable

#: In bytes. ZooKeeper drops the connection over a larger request, and all leases may go with it.
LARGEST = 1_000_000
#: What an operation takes beside its path and value, with room to spare.
_EACH = 100


class FolderMissing(Exception):
    """Not all of *folders* are there, in which nodes were to be made."""

    def __init__(self, folders: Collection[str]) -> None:
        super().__init__(folders)
        self.folders = folders


@dataclass(slots=True)
class Plan:
    """The operations of *commit* in their order. Rows to be remembered say until when."""

    layout: Layout
    commit: Commit
    now: int
    generation: str = ""
    _operations: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        commit = self.commit
        if commit.was is None:
            self._first_guard(commit)
        else:
            self._next_guard(commit, commit.was)
        for name in commit.absent:
            self._stays_away(self.layout.path(name))
        for name in commit.delete:
            self._delete(name)
        for name, value in commit.create.items():
            self._create(name, value)
        if commit.held is not None:
            self._create(*commit.held, ephemeral=True)
        for name, (value, time) in commit.remember.items():
            self._create(name, value, mark=self.now + time)
        for name, value in commit.update.items():
            self._do(SetData(self.layout.path(name), written(name, 0, value), -1))

    @property
    def size(self) -> int:
        """About how many bytes are sent, and rather fewer."""
        return sum(len(o.path) + len(getattr(o, "data", b"")) + _EACH for o in self._operations)

    def send(self, kazoo: Any) -> Any:
        if self.size > LARGEST:
            raise BackendUnavailable(f"a commit of {self.size} bytes is more than it takes")
        transaction = kazoo.transaction()
        acl = kazoo.default_acl or OPEN_ACL_UNSAFE
        transaction.operations += [
            operation._replace(acl=acl) if isinstance(operation, Create) else operation
            for operation in self._operations
        ]
        return transaction.commit_async()

    def folders(self) -> set[str]:
        """Where nodes are made."""
        made = {o.path.rpartition("/")[0] for o in self._operations if isinstance(o, Create)}
        return made - {self.layout.path(self.commit.name)}

    def outcome(self, results: Sequence[Any]) -> Committed | None:
        """What became of it. Raises :exc:`FolderMissing` if it can be tried again."""
        for operation, result in zip(self._operations, results, strict=False):
            if isinstance(result, RolledBackError):
                continue
            if isinstance(result, NoNodeError) and isinstance(operation, Create):
                raise FolderMissing(self.folders())
            if isinstance(result, (BadVersionError, NodeExistsError, NoNodeError)):
                return None
            if isinstance(result, KazooException):
                raise result
        return self._committed(results)

    def stat(self, results: Sequence[Any]) -> Any:
        """The guard's new ``ZnodeStat``, or ``None`` if it was not written."""
        guard = self.layout.path(self.commit.name)
        for operation, result in zip(self._operations, results, strict=True):
            if isinstance(operation, SetData) and operation.path == guard:
                return result
        return None

    def _committed(self, results: Sequence[Any]) -> Committed:
        stat, value = self.stat(results), self.commit.guard
        if value is None or stat is None:
            return Committed(0, None if value is None else self.commit.was)
        guard = Row(value, f"{stat.version}.{self.generation}", stat.czxid)
        return Committed(stat.mzxid, guard)

    def _first_guard(self, commit: Commit) -> None:
        guard, self.generation = self.layout.path(commit.name), os.urandom(8).hex()
        if commit.guard is None:
            self._stays_away(guard)
            return
        value = written(commit.name, int(self.generation, 16), commit.guard)
        self._do(_made(guard, b""))
        self._do(_made(f"{guard}/{self.generation}", b""))
        self._do(SetData(guard, value, 0))

    def _next_guard(self, commit: Commit, was: Row) -> None:
        guard, (version, self.generation) = self.layout.path(commit.name), was.stamp.split(".")
        child = f"{guard}/{self.generation}"
        if commit.guard is None:
            self._do(Delete(child, -1))
            self._do(Delete(guard, int(version)))
            return
        self._do(CheckVersion(child, -1))
        if commit.changes:
            value = written(commit.name, int(self.generation, 16), commit.guard)
            self._do(SetData(guard, value, int(version)))
        else:
            self._do(CheckVersion(guard, int(version)))

    def _stays_away(self, path: str) -> None:
        self._do(_made(path, b""))
        self._do(Delete(path, -1))

    def _delete(self, name: Name) -> None:
        self._do(Delete(self.layout.path(name), -1))
        if name.kind is Kind.DONE:  # so that nobody forgets the next one of this name instead
            self._do(SetData(self.layout.folder(name.kind, part_of(name)), b"", -1))

    def _create(self, name: Name, value: bytes, *, mark: int = 0, ephemeral: bool = False) -> None:
        self._do(_made(self.layout.path(name), written(name, mark, value), ephemeral=ephemeral))

    def _do(self, operation: Any) -> None:
        self._operations.append(operation)


def _made(path: str, value: bytes, *, ephemeral: bool = False) -> Any:
    """To be made; who may use it is added when it is sent."""
    return Create(path, value, (), int(ephemeral))


def row_of(name: Name, path: str, data: bytes, stat: Any) -> Row:
    """A node as it was read."""
    node = as_read(path.rpartition("/")[2], data)
    guards = name.kind in (Kind.GUARD, Kind.BAR)
    stamp = f"{stat.version}.{node.mark:016x}" if guards else str(stat.mzxid)
    return Row(node.value, stamp, stat.czxid)
