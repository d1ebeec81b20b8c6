"""The parts of etcd's transactions, as protobuf writes them.

protobuf's own messages copy each part into the one around it, by writing and reading it anew. For
the two transactions of a free key that was the largest part of what they cost here.
"""

from __future__ import annotations

from functools import lru_cache


def _number(number: int) -> bytes:
    """Seven bits a byte, the lowest first; negative ones go around."""
    number &= 2**64 - 1
    written = bytearray()
    while number >= 128:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


#: The same for lengths and leases, of which there are few.
_length = lru_cache(256)(_number)


def _number_in(field: int) -> bytes:
    return _number(field << 3)


def _bytes_in(field: int) -> bytes:
    return _number(field << 3 | 2)


# TxnRequest
_COMPARE, _SUCCESS = _bytes_in(1), _bytes_in(2)
# Compare
_BY_CREATION, _BY_CHANGE = _number_in(2) + _number(1), _number_in(2) + _number(2)
_AFTER_CREATION = _number_in(1) + _number(1) + _BY_CREATION
_COMPARED, _CREATED, _CHANGED = _bytes_in(3), _number_in(5), _number_in(6)
_NEVER = _CREATED + _number(0)
# RequestOp
_RANGE, _PUT, _DELETE = _bytes_in(1), _bytes_in(2), _bytes_in(3)
# RangeRequest, PutRequest and DeleteRangeRequest
_KEY, _VALUE, _LEASE = _bytes_in(1), _bytes_in(2), _number_in(3)
_KEYS_ONLY = _number_in(8) + _number(1)

#: Of a put: the value, or the lease, is to stay as it is.
KEEP_VALUE, KEEP_LEASE = _number_in(5) + _number(1), _number_in(6) + _number(1)


def absent(key: bytes) -> bytes:
    return _compare(_BY_CREATION, key, _NEVER)


def there(key: bytes) -> bytes:
    return _compare(_AFTER_CREATION, key, _NEVER)


def born(key: bytes, revision: int) -> bytes:
    """*key* is there, and is still the one that was made by *revision*."""
    return _compare(_BY_CREATION, key, _CREATED + _number(revision))


def stands(key: bytes, revision: int) -> bytes:
    """*key* is as *revision* has left it."""
    return _compare(_BY_CHANGE, key, _CHANGED + _number(revision))


def put(key: bytes, value: bytes, how: bytes = b"") -> bytes:
    """*how*: :func:`on_lease`, ``KEEP_VALUE`` or ``KEEP_LEASE``."""
    parts = _KEY, _length(len(key)), key, _VALUE, _length(len(value)), value, how
    return _change(_PUT, b"".join(parts))


def on_lease(lease: int) -> bytes:
    return _LEASE + _length(lease)


def delete(key: bytes) -> bytes:
    return _change(_DELETE, b"".join((_KEY, _length(len(key)), key)))


def look(key: bytes, keys_only: bool) -> bytes:
    how = _KEYS_ONLY if keys_only else b""
    return _change(_RANGE, b"".join((_KEY, _length(len(key)), key, how)))


def _compare(kind: bytes, key: bytes, revision: bytes) -> bytes:
    compare = b"".join((kind, _COMPARED, _length(len(key)), key, revision))
    return b"".join((_COMPARE, _length(len(compare)), compare))


def _change(kind: bytes, change: bytes) -> bytes:
    size = _length(len(change))
    whole = _length(len(kind) + len(size) + len(change))
    return b"".join((_SUCCESS, whole, kind, size, change))
