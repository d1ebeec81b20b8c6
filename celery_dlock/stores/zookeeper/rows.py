"""Rows in ZooKeeper: where one lies, what is written there, and a commit as one multi-operation.

``/<prefix>,1/<kind>/<part>/<key>,<part of the name>``: keys are spread over 64 folders a kind, as
all children of a folder are listed in one answer. What is due has one folder and names that sort.
A long name is replaced by its digest, and stands in the node itself.

Each node begins with a mark of eight bytes. A version row has the number of its generation there: a
version row that is made anew counts its versions from 0 again. Other rows have the instant from
which they may be forgotten, or 0.

A version row has a child, called by its generation and made with it; no version row can be deleted
without its child. So an operation on that child succeeds only with the version row that was read,
although the one made anew may have come to the same version. The version row is written last of all
in its making: the answer to a write tells the number of the commit.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
)
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import ORDERED, PARTS, Commit, Committed, Kind, Name, Row
from celery_dlock.stores.unreadable import UnreadableKey

#: Characters; ZooKeeper has no limit but that of a whole request.
_LONGEST_NAME = 255
_MARK = struct.Struct(">Q")


class NodeData(NamedTuple):
    """What is written at a node."""

    mark: int
    value: bytes


class Layout:
    """The tree of one *prefix* below *chroot*, which is empty or begins with a slash."""

    def __init__(self, chroot: str, prefix: str) -> None:
        self.root = f"{chroot}/{_quoted(prefix)},1"

    def folder(self, kind: Kind, part: int) -> str:
        return f"{self.root}/{kind}" if kind in ORDERED else f"{self.root}/{kind}/{part:02x}"

    def folders(self, kind: Kind, part: int | None = None) -> list[str]:
        """Where names of *kind* lie, in that *part* of all."""
        if kind in ORDERED:
            return [self.folder(kind, 0)]
        return [self.folder(kind, number) for number in (range(PARTS) if part is None else [part])]

    def path(self, name: Name) -> str:
        return f"{self.folder(name.kind, part_of(name))}/{_file(name)}"


def part_of(name: Name) -> int:
    """In which part of all a name lies."""
    return _part(name.key)


def name_of(kind: Kind, file: str) -> Name | None:
    """The name of a node called *file*; ``None`` if it is too long to be called by its name."""
    if ",," in file:
        return None
    one, other = (unquote(text, errors="surrogatepass") for text in file.split(","))
    return Name(kind, other, one) if kind in ORDERED else Name(kind, one, other)


def is_ours(kind: Kind, file: str) -> bool:
    """Whether a node that is called *file* can be a row of ours."""
    try:
        name_of(kind, file)
    except ValueError:
        return False
    return True


def written(name: Name, mark: int, value: bytes) -> bytes:
    """What is to be written at the node of *name*."""
    full = _full(name)
    called = full.encode() + b"\n" if len(full) > _LONGEST_NAME else b""
    return _MARK.pack(mark) + called + value


def as_read(file: str, data: bytes) -> NodeData:
    """What was written at a node called *file*. Raises :exc:`ValueError` if it is not ours."""
    mark, value = _mark(data), data[_MARK.size :]
    if ",," in file:
        _, newline, value = value.partition(b"\n")
        if not newline:
            raise ValueError(f"{file} is not a row of ours")
    return NodeData(mark, value)


def long_name(kind: Kind, data: bytes) -> Name | None:
    """The name that stands in a node that is not called by it; ``None`` if it is not ours."""
    try:
        return name_of(kind, data[_MARK.size :].partition(b"\n")[0].decode())
    except ValueError:
        return None


def mark_in(data: bytes) -> int:
    """The mark of a node; 0 if it is not a row of ours, which nobody may forget."""
    return _mark(data) if len(data) >= _MARK.size else 0


def _mark(data: bytes) -> int:
    if len(data) < _MARK.size:
        raise ValueError("a node is not a row of ours")
    (mark,) = _MARK.unpack_from(data)
    return int(mark)


def _full(name: Name) -> str:
    names = (name.part, name.key) if name.kind in ORDERED else (name.key, name.part)
    return ",".join(map(_quoted, names))


def _file(name: Name) -> str:
    full = _full(name)
    if len(full) <= _LONGEST_NAME:
        return full
    order = _quoted(name.part) if name.kind in ORDERED else ""
    return f"{order},,{hashlib.sha256(full.encode()).hexdigest()}"


@lru_cache(maxsize=1024)  # an operation asks for the same few again and again
def _part(key: str) -> int:
    return zlib.crc32(key.encode(errors="surrogatepass")) % PARTS


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return quote(text, safe=":|", errors="surrogatepass")


#: In bytes. ZooKeeper drops the connection over a larger request, and all leases may go with it.
LARGEST_REQUEST = 1_000_000
#: What an operation takes beside its path and value, with room to spare.
_EACH = 100


class FolderMissing(Exception):
    """Not all of *folders* are there, in which nodes were to be made."""

    def __init__(self, folders: Collection[str]) -> None:
        super().__init__(folders)
        self.folders = folders


@dataclass(slots=True)
class MultiOperation:
    """The operations of *commit* in their order. Rows to be remembered say until when."""

    layout: Layout
    commit: Commit
    now: int
    generation: str = ""
    _operations: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        commit = self.commit
        if commit.was is None:
            self._first_version_row(commit)
        else:
            self._next_version_row(commit, commit.was)
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
        if self.size > LARGEST_REQUEST:
            raise BackendUnavailable(
                f"the change of {self.commit.name.key!r} has {self.size} bytes, and a server takes "
                f"{LARGEST_REQUEST}: nothing was done. Give its tasks smaller arguments"
            )
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
        """The version row's new ``ZnodeStat``, or ``None`` if it was not written."""
        version_row = self.layout.path(self.commit.name)
        for operation, result in zip(self._operations, results, strict=True):
            if isinstance(operation, SetData) and operation.path == version_row:
                return result
        return None

    def _committed(self, results: Sequence[Any]) -> Committed:
        stat, value = self.stat(results), self.commit.version_row
        if value is None or stat is None:
            return Committed(0, None if value is None else self.commit.was)
        version_row = Row(value, f"{stat.version}.{self.generation}", stat.czxid)
        return Committed(stat.mzxid, version_row)

    def _first_version_row(self, commit: Commit) -> None:
        version_row, self.generation = self.layout.path(commit.name), os.urandom(8).hex()
        if commit.version_row is None:
            self._stays_away(version_row)
            return
        value = written(commit.name, int(self.generation, 16), commit.version_row)
        self._do(_made(version_row, b""))
        self._do(_made(f"{version_row}/{self.generation}", b""))
        self._do(SetData(version_row, value, 0))

    def _next_version_row(self, commit: Commit, was: Row) -> None:
        version_row, (version, self.generation) = (
            self.layout.path(commit.name),
            was.stamp.split("."),
        )
        child = f"{version_row}/{self.generation}"
        if commit.version_row is None:
            self._do(Delete(child, -1))
            self._do(Delete(version_row, int(version)))
            return
        self._do(CheckVersion(child, -1))
        if commit.changes:
            value = written(commit.name, int(self.generation, 16), commit.version_row)
            self._do(SetData(version_row, value, int(version)))
        else:
            self._do(CheckVersion(version_row, int(version)))

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
    """A node as it was read. Raises :exc:`UnreadableKey` if it is not ours."""
    try:
        node = as_read(path.rpartition("/")[2], data)
    except ValueError as exc:
        raise UnreadableKey(f"of {name.key!r}: {exc}") from exc
    version_rows = name.kind in (Kind.VERSION_ROW, Kind.BAR, Kind.SWAP)
    stamp = f"{stat.version}.{node.mark:016x}" if version_rows else str(stat.mzxid)
    return Row(node.value, stamp, stat.czxid)
