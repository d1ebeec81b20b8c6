"""A parked message keeps what its publisher said, and nothing of the delivery that was parked."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_dlock.messages.envelope import (
    _OF_THE_DELIVERY,
    OfAnotherVersion,
    ParkedMessage,
    Undecodable,
)
from tests.services.nonsense import spoilt

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
    message = ParkedMessage.of_delivery("shop", "one:0:0", delivery).encode({})
    return dict(ParkedMessage.decode("order:42", "one:0:0", message).properties)


def test_what_the_publisher_said_is_kept() -> None:
    said = {"priority": 7, "delivery_mode": 2, "correlation_id": "one", "reply_to": "here"}
    assert kept(**said) == said


OF_ONE_PUBLISH = (
    "expiration",
    "user_id",
    "DelaySeconds",
    "delay_seconds",
    "MessageDeduplicationId",
)


@pytest.mark.parametrize(
    "name", ["content_type", "content_encoding", "delivery_tag", *OF_ONE_PUBLISH]
)
def test_what_is_of_the_delivery_or_of_one_publish_is_not_said_again(name: str) -> None:
    assert kept(**{name: "x", "MessageGroupId": "7"}) == {"MessageGroupId": "7"}


@pytest.mark.parametrize("name", OF_ONE_PUBLISH)
def test_nor_is_what_the_publisher_of_an_ordered_call_says_of_that_publish(name: str) -> None:
    options = {"headers": {}, name: "x", "MessageGroupId": "7"}
    message = ParkedMessage.of_publish("shop", "order:42", "one:0:0", ((), {}, {}), options)
    assert message.properties == {"MessageGroupId": "7"}


def test_the_other_queues_of_one_publish_do_not_get_a_wake() -> None:
    headers = {**DELIVERY["headers"], "CC": ["audit"], "x-delay": -5000}
    delivery = {**DELIVERY, "headers": headers, "properties": {}}
    message = ParkedMessage.of_delivery("shop", "one:0:0", delivery)
    assert message.headers == DELIVERY["headers"]


@pytest.mark.parametrize("part", [b"", b"{}", b"one line", b"{}\n[]", b"[]\n[]", b"\n[]"])
def test_what_is_no_message_is_said_to_be_none(part: bytes) -> None:
    with pytest.raises(Undecodable):
        ParkedMessage.decode("order:42", "one:0:0", part)


def test_a_message_that_was_cut_off_is_none() -> None:
    message = ParkedMessage.of_delivery("shop", "one:0:0", {**DELIVERY, "properties": {}}).encode(
        {}
    )
    assert ParkedMessage.decode("order:42", "one:0:0", message).body == b"[]"
    with pytest.raises(Undecodable, match="no body"):
        ParkedMessage.decode("order:42", "one:0:0", message.partition(b"\n")[0])


#: What a header may be: whatever a broker's tables, JSON with types, or a pickle can carry.
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.uuids()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.decimals(allow_nan=False)
)
names = st.text() | st.sampled_from(["!", "=", "__type__", "__value__", "schema", "bytes"])
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(names, inner)
        | st.dictionaries(st.integers() | st.booleans() | st.binary(), inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(headers=st.dictionaries(names, values), properties=st.dictionaries(names, values))
@example(headers={"a": {"__type__": "decimal", "__value__": "x"}}, properties={})
@example(headers={"a": {"__type__": "datetime", "__value__": "2026-01-01T00:00:00"}}, properties={})
@example(headers={"a": {"!": "bytes", "=": "AA=="}, "!": "dict"}, properties={})
def test_headers_and_properties_come_back_as_they_were(
    headers: dict[str, Any], properties: dict[str, Any]
) -> None:
    delivery = {**DELIVERY, "headers": headers, "properties": properties}
    message = ParkedMessage.of_delivery("shop", "one:0:0", delivery).encode({})
    read = ParkedMessage.decode("order:42", "one:0:0", message)
    assert same(dict(read.headers), headers)
    assert same(read.properties, {n: v for n, v in properties.items() if n not in _OF_THE_DELIVERY})
    assert read.body == b"[]"


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: to Python ``True`` is 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(map(same, one.items(), other.items())) and len(one) == len(other)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return all(map(same, one, other)) and len(one) == len(other)
    return type(one) is type(other) and bool(one == other)


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
SOUND = ParkedMessage.of_delivery("shop", "one:0:0", {**DELIVERY, "properties": {}}).encode({})
FRAME: dict[str, Any] = json.loads(SOUND.partition(b"\n")[0])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"headers": None}, {"headers": []}, {"headers": "x"}, {"properties": [["a", 1]]}),
        *({"broker": 5}, {"task": None}, {"exchange": {}}, {"routing_key": []}),
        *({"content_type": 1}, {"content_encoding": []}),
        {"headers": {"a": {"!": "decimal", "=": "x"}}},
        {"headers": {"a": {"!": "bytes", "=": 5}}},
        {"headers": {"a": {"!": "unheard of", "=": 5}}},
        {"headers": {"a": {"!": []}}},
        {"headers": {"!": "dict", "=": [[1, 2]]}},
    ],
)
def test_a_frame_of_other_types_is_no_message(wrong: dict[str, Any]) -> None:
    head = json.dumps({**FRAME, **wrong}).encode()
    with pytest.raises(Undecodable):
        ParkedMessage.decode("order:42", "one:0:0", head + b"\n[]")


@pytest.mark.parametrize("head", [DEEP, b"[" * 100_000, b"5", b"null", b"9" * 5000, b"\xff"])
def test_whatever_stands_at_the_head_is_undecodable_and_nothing_else(head: bytes) -> None:
    with pytest.raises(Undecodable):
        ParkedMessage.decode("order:42", "one:0:0", head + b"\n[]")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(number=st.integers(0, 2**63))
def test_a_damaged_message_is_read_or_undecodable(number: int) -> None:
    with suppress(Undecodable, OfAnotherVersion):
        message = spoilt(SOUND[:-3], Random(number)) + SOUND[-3:]
        entry = ParkedMessage.decode("order:42", "one:0:0", message)
        assert isinstance(entry.headers, dict)
