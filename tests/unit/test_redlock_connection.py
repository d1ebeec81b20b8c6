"""What a connection to a node makes of the bytes that come."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_dlock.stores.redis.client import packed
from celery_dlock.stores.redis.scripts import Script
from celery_dlock.stores.redlock.connection import NodeConnection
from celery_dlock.stores.redlock.node import Refusal
from celery_dlock.stores.redlock.wire import ScriptCall

REPLIES = {
    b":7\r\n": 7,
    b"+OK\r\n": b"OK",
    b"$4\r\na\r\nb\r\n": b"a\r\nb",
    b"$0\r\n\r\n": b"",
    b"$-1\r\n": None,
    b"*-1\r\n": None,
    b"*0\r\n": [],
    b"*2\r\n*1\r\n$1\r\nx\r\n:-1\r\n": [[b"x"], -1],
}


class Here:
    """A node at the other end of a pair of sockets; its memory stands."""

    timeout = 1.0
    forgot = False
    end: socket.socket

    def redis_connection(self) -> Any:
        here, self.end = socket.socketpair()
        self.end.sendall(b":1\r\n")

        def disconnect() -> None:
            here.close()
            self.end.close()

        return SimpleNamespace(_sock=here, connect=lambda: None, disconnect=disconnect)

    def unsaid(self) -> tuple[bytes, ...]:
        return ()


class Ours:
    """A connection, and the node's end of it."""

    def __init__(self) -> None:
        self._node = Here()
        self.connection = NodeConnection(cast("Any", self._node), [b"hello"])
        self.connection.open()
        assert self.hears() == b"hello"

    def ask(self, *calls: ScriptCall) -> None:
        self.connection.send(calls)

    def answer(self, text: bytes) -> None:
        self._node.end.sendall(text)

    def hears(self) -> bytes:
        return self._node.end.recv(1 << 16)


@pytest.fixture
def ours() -> Iterator[Ours]:
    ours = Ours()
    with closing(ours.connection):
        yield ours


SCRIPT = Script.with_text("return 1")


def call(number: int = 0) -> ScriptCall:
    return ScriptCall(SCRIPT, ["key"], [number])


@pytest.mark.parametrize(("text", "value"), REPLIES.items())
def test_replies_are_there_with_their_last_byte(ours: Ours, text: bytes, value: Any) -> None:
    ours.ask(call(), call())
    whole = text + b":8\r\n"
    for n in range(len(whole)):
        assert ours.connection.receive() is None
        ours.answer(whole[n : n + 1])

    assert ours.connection.receive() == [value, 8]


def test_what_came_before_a_connection_was_closed_is_forgotten(ours: Ours) -> None:
    ours.ask(call())
    ours.answer(b"$5\r\nla")
    assert ours.connection.receive() is None

    ours.connection.close()
    ours.connection.open()
    ours.ask(call())
    ours.answer(b":3\r\n")

    assert ours.connection.receive() == [3]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
        (b"-ERR unknown command 'AUTH', with args: 'hunter2'\r\n", "ERR"),
        (b"-hunter2 is wrong\r\n", "ERR"),
        (b"-\xff\xfe\r\n", "ERR"),
    ],
)
def test_only_the_first_word_of_an_error_is_said(ours: Ours, text: bytes, word: str) -> None:
    ours.ask(call(), call())
    ours.answer(text + b"*2\r\n:1\r\n" + text)  # it may be a part of a reply, too

    (error, (_, part)) = cast("Any", ours.connection.receive())
    for each in (error, part):
        assert isinstance(each, Refusal)
        assert str(each) == word


def test_a_command_is_its_arguments_as_bytes() -> None:
    assert packed(("SET", "\u9396", 12, b"\x00\r\n")) == (
        b"*4\r\n$3\r\nSET\r\n$3\r\n\xe9\x8e\x96\r\n$2\r\n12\r\n$3\r\n\x00\r\n\r\n"
    )
