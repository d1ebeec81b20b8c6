"""A parked message keeps what its publisher said, and nothing of the delivery that was parked."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.tasks.entry import Entry

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
