"""A connection to one node on which nobody has to wait for a reply.

A caller that has heard enough goes on; what then comes late is read before the replies to whatever
was asked next, and dropped unless it says that the node forgot. Requests on one connection are
served in their order, so what is released after it was taken stays free, however slow the node.

redis-py opens the connection, with its passwords and certificates; but it would wait for a reply.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from celery_dlock.stores.redlock.node import BROKEN, FORGOT, RedlockNode, Refusal
from celery_dlock.stores.redlock.wire import ScriptCall

#: Raised when there is nothing to read, or no room to write, at the moment.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_AT_ONCE = 1 << 16

_NUMBER, _BULK, _ARRAY, _STATUS, _ERROR = b":$*+-"


class _Incomplete(Exception):
    """The rest of the reply has not come yet."""


class NodeConnection:
    """To one node, for one caller at a time. A caller that meets something of ``BROKEN`` closes it.

    *greeting* is said first on each connection; its first answer is whether the node has a memory.
    """

    def __init__(self, node: RedlockNode, greeting: Sequence[bytes]) -> None:
        self.node = node
        self.socket: Any = None
        self.descriptor = -1
        self._greeting = greeting
        self._redis: Any = None
        self._rest = b""  # of a reply that has not come whole
        self._late = 0  # so many replies are still to come that nobody wants
        self._heard = 0.0
        self._calls: Sequence[ScriptCall] = ()
        self._replies: list[Any] = []
        self._missing: deque[int] = deque()

    @property
    def is_open(self) -> bool:
        return self.socket is not None

    def open(self) -> None:
        """Connect, and say what is to be said before anything else."""
        self._redis = redis_connection = self.node.redis_connection()
        redis_connection.connect()
        # No public name for it is in all versions.
        self.socket = redis_connection._sock  # noqa: SLF001
        greeting = [*self._greeting, *self.node.unsaid()]
        self.socket.sendall(b"".join(greeting))
        self._replies = [None] * len(greeting)
        self._missing.extend(range(len(greeting)))
        while self._missing:
            self._receive()
        for reply in self._replies:
            if isinstance(reply, Refusal):
                raise reply
        self.node.forgot = self.node.forgot or not self._replies[0]
        self.socket.setblocking(False)
        self.descriptor = self.socket.fileno()

    def send(self, calls: Sequence[ScriptCall]) -> None:
        """Ask; replies to what was asked before are of no more interest."""
        if self._missing or self._late:
            self._catch_up()
        self._calls, self._replies = calls, [None] * len(calls)
        self._missing.extend(range(len(calls)))
        self._write(calls[0].packed if len(calls) == 1 else b"".join([c.packed for c in calls]))

    def receive(self) -> list[Any] | None:
        """Take in what has come; the replies, once they are complete."""
        try:
            while self._missing:
                self._receive()
        except _NOT_NOW:
            return None
        for reply in self._replies:
            if reply.__class__ is Refusal:
                return self._ask_in_full()
        return self._replies

    def close(self) -> None:
        redis_connection, self._redis, self.socket = self._redis, None, None
        self._rest = b""
        self._missing.clear()
        self._late, self._calls = 0, ()
        if redis_connection is not None:
            with suppress(*BROKEN):
                redis_connection.disconnect()

    def _catch_up(self) -> None:
        """Take in what has come late. A node that owes replies for too long is asked no more."""
        self._late += len(self._missing)
        self._missing.clear()
        try:
            while self._late:
                self._receive()
        except _NOT_NOW:
            if time.monotonic() - self._heard > self.node.timeout:
                raise TimeoutError("it owes replies") from None

    def _receive(self) -> None:
        data = self.socket.recv(_AT_ONCE)
        if not data:
            raise ConnectionResetError("closed by the node")
        self._heard = time.monotonic()
        if self._rest:
            data = self._rest + data
        at = 0
        try:
            while at < len(data) and (self._late or self._missing):
                reply, at = _parsed(data, at)
                if self._late:
                    self._late -= 1
                    self.node.forgot |= reply == FORGOT
                else:
                    self._replies[self._missing.popleft()] = reply
        except _Incomplete:
            pass
        self._rest = data[at:]

    def _ask_in_full(self) -> list[Any] | None:
        """Again, what the node has no script for; the replies, if that is not what is wrong."""
        refused = (n for n, reply in enumerate(self._replies) if isinstance(reply, Refusal))
        self._missing.extend(n for n in refused if str(self._replies[n]) == "NOSCRIPT")
        if not self._missing:
            return self._replies
        self._write(b"".join(self._calls[n].in_full() for n in self._missing))
        return None

    def _write(self, data: bytes) -> None:
        if not self._late:
            self._heard = time.monotonic()
        try:
            sent = self.socket.send(data)
        except _NOT_NOW:
            sent = 0
        if sent < len(data):
            self.socket.settimeout(self.node.timeout)
            self.socket.sendall(data[sent:])
            self.socket.setblocking(False)


def _parsed(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The reply that begins *at*, and where the next one does.

    An error is returned, not raised. Raises :exc:`_Incomplete`, and :exc:`ValueError` for what is
    no reply.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _Incomplete
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
        raise _Incomplete
    return data[at : at + size], at + size + 2


def _array(data: bytes, size: int, at: int) -> tuple[list[Any] | None, int]:
    if size < 0:
        return None, at
    items: list[Any] = []
    for _ in range(size):
        item, at = _parsed(data, at)
        items.append(item)
    return items, at
