"""One text for one value, whichever process renders it and whatever serializer it came through.

A producer has the tuple, the ``str`` Enum and the UUID; the worker has what the serializer made
of them. Both must name the same lock. So types that a serializer merges are merged here, and a
value whose text could differ between two processes is refused instead of guessed at. That also
means that a few different values share a text: ``1`` and ``"1"``, ``True`` and ``"True"``, bytes
and their UTF-8 text. Sharing makes two tasks wait for each other; it never lets both run.

Of two calls that share a text one would be lost. So they are compared by their :func:`exact` text,
which says the type as well, as far as every serializer that takes such a value keeps its type.

Every value is percent-encoded down to letters, digits and ``-_.@+``. The rest of printable ASCII
is left for structure, so ``("a:b", "c")`` and ``("a", "b:c")`` stay apart.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import Any
from urllib.parse import quote
from uuid import UUID

from celery_dlock.errors import ConfigurationError

LONGEST_KEY = 200
_HEAD = 150
_DIGEST = 48

#: What a URL may contain, except ``#`` (which numbers the slots of a key), and escapes as they are.
_UNSAFE = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~:/?@!$&'()*+,;=\[\]]")

#: What a value may not contain as it is.
_STRUCTURE = re.compile(r"[^A-Za-z0-9\-_.@+]")


def canonical(key: object) -> str:
    """*key* as the stores see it: printable ASCII without spaces, braces or ``#``, 1 to 200 long.

    Saying it twice changes nothing: what is percent-encoded already stays so, which makes a key
    that was read somewhere good for ``lock()``. A longer key keeps its head and ends with a hash.

    Raises :exc:`~celery_dlock.ConfigurationError` for an empty key and for what is not a ``str``.
    """
    if not isinstance(key, str):
        raise ConfigurationError(f"a key is a str, not {type(key).__name__}")
    if not key:
        raise ConfigurationError("a key must not be empty")
    return shorten(escape(key))


def escape(text: str) -> str:
    """*text* with what a store might trip over percent-encoded."""
    return _UNSAFE.sub(lambda m: m[0].upper() if len(m[0]) == 3 else _quote(m[0]), text)


def shorten(key: str) -> str:
    """*key*, or its head and a hash of the whole when it is longer than ``LONGEST_KEY``."""
    if len(key) <= LONGEST_KEY:
        return key
    head = re.sub(r"%[0-9A-F]?$", "", key[:_HEAD])
    return f"{head}~{hashlib.sha256(key.encode()).hexdigest()[:_DIGEST]}"


def render(value: object) -> str:
    """The canonical text of *value*, an aware ``datetime`` as its instant in UTC.

    Raises :exc:`TypeError` for a type without one, :exc:`ValueError` for a value without one.
    """
    return _text(value, typed=False)


def exact(value: object) -> str:
    """As :func:`render`, and another text for another type: ``1`` and ``"1"`` differ.

    What a serializer merges is the same still: a tuple and a list, a ``str`` Enum and its content.
    """
    return _text(value, typed=True)


def _text(value: object, *, typed: bool) -> str:
    if isinstance(value, Enum) and not isinstance(value, _WRITTEN_AS_CONTENT):
        value = value.value
    for kind, name, text in _SCALARS:
        if isinstance(value, kind):
            scalar = _encoded(text(value))
            return f"{name}'{scalar}" if typed else scalar
    if isinstance(value, dict):
        pairs = _pairs(value, typed=typed)
        return f"({','.join(f'{name}={content}' for name, content in pairs)})"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_item(item, typed=typed) for item in value)}]"
    if isinstance(value, (set, frozenset)):
        members = ",".join(sorted(_item(item, typed=typed) for item in value))
        return f"set[{members}]" if typed else f"[{members}]"
    raise TypeError(f"{type(value).__name__} has no text that is the same in every process")


def _encoded(text: str | bytes) -> str:
    if isinstance(text, bytes):
        return quote(text, "@+").replace("~", "%7E")
    return _STRUCTURE.sub(lambda m: _quote(m[0]).replace("~", "%7E"), text)


@lru_cache  # of what keys contain, a few signs come again and again
def _quote(text: str) -> str:
    return quote(text, "", errors="surrogatepass")  # JSON carries lone surrogates


def _item(value: object, *, typed: bool) -> str:
    return _text(value, typed=typed) or "''"  # else [""] would read like []


def _pairs(value: dict[Any, Any], *, typed: bool) -> list[tuple[str, str]]:
    """The items as texts, in their order; JSON makes text of names that are numbers."""
    for name in value:
        if not isinstance(name, (str, int, float)) or isinstance(name, bool):
            raise TypeError(f"{type(name).__name__} as the key of a dict has no stable text")
    pairs = {render(name): _text(content, typed=typed) for name, content in value.items()}
    if len(pairs) < len(value):
        raise ValueError("two keys of a dict have the same text")
    return sorted(pairs.items())


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return float.__repr__(value)


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} is not a finite number")
    return str(value)


def _instant(value: datetime) -> str:
    return (value if value.utcoffset() is None else value.astimezone(UTC)).isoformat()


#: A member of such an Enum goes through JSON as what it contains, whatever its ``value``.
_WRITTEN_AS_CONTENT = (str, bytes, int, float)

#: A kind of values, its name, and how it is written. What is of two kinds is of the first.
_SCALARS: tuple[tuple[type | tuple[type, ...], str, Callable[[Any], str | bytes]], ...] = (
    (str, "str", str.__str__),
    ((bytes, bytearray, memoryview), "bytes", bytes),
    ((bool, NoneType), "constant", str),
    (int, "int", int.__repr__),
    (float, "float", _float),
    (Decimal, "decimal", _decimal),
    (UUID, "uuid", str),
    (datetime, "datetime", _instant),
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
)
