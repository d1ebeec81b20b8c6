"""What is told of a dead message is read from its envelope, and nothing in it is run."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.state import Cause, Dead, Mode
from celery_dlock.ops.dead_letters import DeadLetterEntry
from celery_dlock.stores.base import DeadMessage
from tests.cli.operator import Operator, operator


@pytest.fixture
def desk() -> Iterator[Operator]:
    with operator(dlock_url="memory://") as made:
        yield made


def letter(message: bytes) -> DeadLetterEntry:
    dead = Dead("id:1:0", Mode.EXCLUSIVE, Cause.UNREADABLE, 1_000_000)
    return DeadLetterEntry.of(DeadMessage("order:42", dead, message))


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_a_pickle_stays_closed(desk: Operator, tmp_path: Path) -> None:
    body = pickle.dumps(Bomb(tmp_path / "owned"))
    for kind in ("application/x-python-serialize", "pickle", "application/json"):
        found = letter(desk.message("id", content_type=kind, body=body))
        assert (found.name, found.arguments) == ("charge", None)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"{}", b"[]", b"1", b'"ab"', b"[" * 100_000, b"\xff\xfe", b"null"],
    ids=lambda body: repr(body[:10]),
)
def test_a_body_that_is_none_tells_nothing(desk: Operator, body: bytes) -> None:
    found = letter(desk.message("id", body=body))

    assert found.name == "charge"
    assert found.arguments is None or body == b'"ab"'


@pytest.mark.parametrize("header", [None, 1, ["x"], {"a": "b"}])
def test_headers_may_be_anything(desk: Operator, header: object) -> None:
    headers = {"task": header, "argsrepr": header, "kwargsrepr": header}

    found = letter(desk.message("id", headers=headers))

    assert (found.name, found.arguments) == (None, "[42] {'note': 'secret'}")


def test_what_is_no_message_is_told_of_all_the_same() -> None:
    for message in (b"", b"\n", b"x", b"{}\nbody", b'{"schema": 99}\n'):
        found = letter(message)
        assert (found.key, found.task_id, found.task) == ("order:42", "id", "id:1:0")
        assert (found.name, found.size, found.cause) == (None, len(message), Cause.UNREADABLE)
