"""Redis' protocol, as far as scripts need it: commands as bytes, and replies as they trickle in.

redis-py connects, with its passwords and certificates. But it reads a reply in one go and packs a
command for each connection anew; asking five nodes at once is to cost little more than asking one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_dlock.backends.redis_scripts import Script

Argument = str | int | bytes

_NUMBER, _BULK, _ARRAY, _STATUS, _ERROR = b":$*+-"


class Incomplete(Exception):
    """The rest of the reply has not come yet."""


class Refusal(Exception):
    """The node answered with an error, of which only the first word is repeated."""

    def __init__(self, text: str) -> None:
        code = text.partition(" ")[0]
        super().__init__(code if code.isascii() and code.isupper() else "ERR")


class Call:
    """A script with its arguments, ready to be sent to any number of nodes."""

    __slots__ = ("_arguments", "_script", "packed")

    def __init__(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> None:
        self._script = script
        self._arguments = (len(keys), *keys, *args)
        self.packed = packed("EVALSHA", script.digest, *self._arguments)

    def in_full(self) -> bytes:
        """For a server that does not have the script."""
        return packed("EVAL", self._script.text, *self._arguments)


def packed(*arguments: Argument) -> bytes:
    """One command."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        value = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


def parsed(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The reply that begins *at*, and where the next one does.

    An error is returned, not raised. Raises :exc:`Incomplete`, and :exc:`ValueError` for what is
    no reply.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, text, at = data[at], data[at + 1 : end], end + 2
    if kind == _NUMBER:
        return int(text), at
    if kind == _BULK:
        return _bulk(data, int(text), at)
    if kind == _ARRAY:
        return _array(data, int(text), at)
    if kind == _STATUS:
        return text, at
    if kind == _ERROR:
        return Refusal(text.decode(errors="replace")), at
    raise ValueError("this is no reply of Redis")


def _bulk(data: bytes, size: int, at: int) -> tuple[bytes | None, int]:
    if size < 0:
        return None, at
    if len(data) < at + size + 2:
        raise Incomplete
    return data[at : at + size], at + size + 2


def _array(data: bytes, size: int, at: int) -> tuple[list[Any] | None, int]:
    if size < 0:
        return None, at
    items: list[Any] = []
    for _ in range(size):
        item, at = parsed(data, at)
        items.append(item)
    return items, at
