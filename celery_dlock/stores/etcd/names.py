"""How rows are called in etcd, whose keys are bytes in byte order.

Names sort as the texts they are made of do, since rows that are due are read in the order of
their parts. UTF-8 keeps the order of the characters. What is left, ``!`` and everything below it,
is written as ``!`` and two digits, so that nothing in a name is as low as the space that ends it::

    <prefix>/1/holder/2a/order:7 4ba1…|9c0e…      kind / one of 64 parts / key, part
    <prefix>/1/due/0001795166707336100 order:7    part, key
"""

from __future__ import annotations

import re
from binascii import crc32
from functools import lru_cache

from celery_dlock.stores.consensus.rows import ORDERED, PARTS, Kind, Name

VERSION = "1"

_LOW = re.compile(rb"[\x00-\x21]")
_WRITTEN = re.compile(rb"!([0-9a-f]{2})")


class Names:
    """The names of one prefix."""

    def __init__(self, prefix: str) -> None:
        #: What every name begins with, and a user of the store may read and write.
        self.root = b"%s/" % _written(prefix).replace(b"/", b"!2f")
        #: What etcd calls a name; one operation says the same ones several times.
        self.written = lru_cache(64)(self._write)
        self._roots = {
            kind: b"%s%s/%s/" % (self.root, VERSION.encode(), kind.encode()) for kind in Kind
        }

    def _write(self, name: Name) -> bytes:
        root, key, part = self._roots[name.kind], _written(name.key), _written(name.part)
        if name.kind in ORDERED:
            return b"%s%s %s" % (root, part, key)
        return b"%s%02x/%s %s" % (root, part_of(name.key), key, part)

    def read(self, kind: Kind, written: bytes) -> Name | None:
        """The name that *written* is etcd's key for; ``None`` for one that is somebody else's."""
        try:
            name = self._read(kind, written)
        except UnicodeDecodeError:
            return None
        return name if self._write(name) == written else None

    def _read(self, kind: Kind, written: bytes) -> Name:
        rest = written.removeprefix(self._roots[kind])
        if kind in ORDERED:
            part, _, key = rest.partition(b" ")
        else:
            key, _, part = rest.partition(b"/")[2].partition(b" ")
        return Name(kind, _read(key), _read(part))

    def range(self, kind: Kind, part: int | None = None) -> tuple[bytes, bytes]:
        """The first key that can be one of *kind*, and the first behind them all."""
        first = self._roots[kind] + (b"" if part is None else b"%02x/" % part)
        return first, first[:-1] + b"0"  # which is what follows a slash

    def range_of(self, kind: Kind, key: str) -> tuple[bytes, bytes]:
        """The first key that can be one of *kind* about *key*, and the first behind them all."""
        first = self._write(Name(kind, key))
        return first, first[:-1] + b"!"  # which is what follows a space


def part_of(key: str) -> int:
    """In which of the parts *key* is listed."""
    return crc32(_bytes(key)) % PARTS


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _written(text: str) -> bytes:
    return _LOW.sub(lambda low: b"!%02x" % ord(low[0]), _bytes(text))


def _read(written: bytes) -> str:
    raw = _WRITTEN.sub(lambda digits: bytes.fromhex(digits[1].decode()), written)
    return raw.decode("utf-8", "surrogatepass")
