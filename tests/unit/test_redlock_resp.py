"""Redis' protocol as it trickles in."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.backends.redis_scripts import Script
from celery_dlock.backends.redlock_resp import Call, Incomplete, Refusal, packed, parsed

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


@pytest.mark.parametrize(("text", "value"), REPLIES.items())
def test_a_reply_is_read_when_its_last_byte_has_come(text: bytes, value: Any) -> None:
    for end in range(len(text)):
        with pytest.raises(Incomplete):
            parsed(text[:end])

    assert parsed(text + b":8\r\n") == (value, len(text))
    assert parsed(b":8\r\n" + text, 4) == (value, 4 + len(text))


def test_of_an_error_the_first_word_is_repeated_and_nothing_that_may_be_a_secret() -> None:
    for text, word in (
        (b"-NOSCRIPT No matching script.\r\n", "NOSCRIPT"),
        (b"-ERR unknown command 'AUTH', with args: 'hunter2'\r\n", "ERR"),
        (b"-hunter2 is wrong\r\n", "ERR"),
    ):
        error, _ = parsed(text)
        assert isinstance(error, Refusal)
        assert str(error) == word


@pytest.mark.parametrize("text", [b"HTTP/1.1 400 Bad Request\r\n", b":seven\r\n", b"\xff\xfe\r\n"])
def test_what_is_no_reply_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"no reply|invalid literal"):
        parsed(text)


def test_a_command_is_its_arguments_as_bytes() -> None:
    assert packed("SET", "\u9396", 12, b"\x00\r\n") == (
        b"*4\r\n$3\r\nSET\r\n$3\r\n\xe9\x8e\x96\r\n$2\r\n12\r\n$3\r\n\x00\r\n\r\n"
    )


def test_a_call_goes_by_the_name_of_its_script_and_to_who_does_not_know_it_in_full() -> None:
    call = Call(Script("return 1", b"abc"), ["key"], [7])

    assert call.packed == packed("EVALSHA", "abc", 1, "key", 7)
    assert call.in_full() == packed("EVAL", "return 1", 1, "key", 7)
