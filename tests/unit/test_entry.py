"""A parked message keeps what its publisher said, and nothing of the delivery that was parked."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.tasks.entry import Entry, Undecodable

DELIVERY: dict[str, Any] = {
    "exchange": "",
    "routing_key": "celery",
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "headers": {"id": "one", "task": "charge"},
    "body": b"[]",
}


def kept(**properties: Any) -> dict[str, Any]:
    delivery = {**DELIVERY, "properties": properties}
    message = Entry.of_delivery("shop", "one:0:0", delivery).encode({})
    return dict(Entry.decode("order:42", message).properties)


def test_what_the_publisher_said_is_kept() -> None:
    said = {"priority": 7, "delivery_mode": 2, "correlation_id": "one", "reply_to": "here"}
    assert kept(**said) == said


@pytest.mark.parametrize("name", ["content_type", "content_encoding", "user_id", "delivery_tag"])
def test_what_is_of_the_delivery_or_said_beside_it_is_not_said_again(name: str) -> None:
    assert kept(**{name: "x", "priority": 7}) == {"priority": 7}


@pytest.mark.parametrize("part", [b"", b"{}", b"one line", b"{}\n[]", b"[]\n[]", b"\n[]"])
def test_what_is_no_message_is_said_to_be_none(part: bytes) -> None:
    with pytest.raises(Undecodable):
        Entry.decode("order:42", part)


def test_a_message_that_was_cut_off_is_none() -> None:
    message = Entry.of_delivery("shop", "one:0:0", {**DELIVERY, "properties": {}}).encode({})
    assert Entry.decode("order:42", message).body == b"[]"
    with pytest.raises(Undecodable, match="no body"):
        Entry.decode("order:42", message.partition(b"\n")[0])
