"""Where a row lies in ZooKeeper's tree, and what is written there beside its value.

``/<prefix>,1/<kind>/<part>/<key>,<part of the name>``: keys are spread over 64 folders a kind, as
all children of a folder are listed in one answer. What is due has one folder and names that sort.
A long name is replaced by its digest, and stands in the node itself.

Each node begins with a mark of eight bytes. A guard has the number of its generation there: a
guard that is made anew counts its versions from 0 again. Other rows have the instant from which
they may be forgotten, or 0.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from celery_dlock.backends.rows import PARTS, Kind, Name

#: Characters; ZooKeeper has no limit but that of a whole request.
_LONGEST = 255
_MARK = struct.Struct(">Q")


class Node(NamedTuple):
    """What is written at a node."""

    mark: int
    value: bytes


class Layout:
    """The tree of one *prefix* below *chroot*, which is empty or begins with a slash."""

    def __init__(self, chroot: str, prefix: str) -> None:
        self.root = f"{chroot}/{_quoted(prefix)},1"

    def folder(self, kind: Kind, part: int) -> str:
        return f"{self.root}/{kind}" if kind is Kind.DUE else f"{self.root}/{kind}/{part:02x}"

    def folders(self, kind: Kind, part: int | None = None) -> list[str]:
        """Where names of *kind* lie, in that *part* of all."""
        if kind is Kind.DUE:
            return [self.folder(kind, 0)]
        return [self.folder(kind, each) for each in (range(PARTS) if part is None else [part])]

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
    return Name(kind, other, one) if kind is Kind.DUE else Name(kind, one, other)


def written(name: Name, mark: int, value: bytes) -> bytes:
    """What is to be written at the node of *name*."""
    full = _full(name)
    called = full.encode() + b"\n" if len(full) > _LONGEST else b""
    return _MARK.pack(mark) + called + value


def as_read(file: str, data: bytes) -> Node:
    """What was written at a node called *file*. Raises :exc:`ValueError` if it is not ours."""
    mark, value = _mark(data), data[_MARK.size :]
    if ",," in file:
        _, newline, value = value.partition(b"\n")
        if not newline:
            raise ValueError(f"{file} is not a row of ours")
    return Node(mark, value)


def long_name(kind: Kind, data: bytes) -> Name:
    """The name that stands in a node that is not called by it."""
    found = name_of(kind, data[_MARK.size :].partition(b"\n")[0].decode())
    if found is None:
        raise ValueError("a node is not a row of ours")
    return found


def _mark(data: bytes) -> int:
    if len(data) < _MARK.size:
        raise ValueError("a node is not a row of ours")
    (mark,) = _MARK.unpack_from(data)
    return int(mark)


def _full(name: Name) -> str:
    names = (name.part, name.key) if name.kind is Kind.DUE else (name.key, name.part)
    return ",".join(map(_quoted, names))


def _file(name: Name) -> str:
    full = _full(name)
    if len(full) <= _LONGEST:
        return full
    order = _quoted(name.part) if name.kind is Kind.DUE else ""
    return f"{order},,{hashlib.sha256(full.encode()).hexdigest()}"


@lru_cache(maxsize=1024)  # an operation asks for the same few again and again
def _part(key: str) -> int:
    return zlib.crc32(key.encode(errors="surrogatepass")) % PARTS


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return quote(text, safe=":|", errors="surrogatepass")
