"""A rescheduled message is the same message, later: nothing that hangs on it is lost."""

# mypy: allow-untyped-calls

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu.entity import Exchange, Queue

from celery_dlock import LockedTask, lock
from tests.services.desk import Desk
from tests.workers.conftest import refused


def test_it_keeps_its_task_id_and_its_retries(desk: Desk, charge: LockedTask) -> None:
    result = charge.apply_async(("42",))

    first, again = refused(desk)

    assert first.acknowledged
    assert again.headers["id"] == result.id
    assert again.headers["retries"] == 0
    assert again.properties["correlation_id"] == result.id
    desk.run(again)
    assert result.get() == 1


def test_it_keeps_its_queue(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(("42",), queue="vip")

    _, again = refused(desk, queue="vip")

    assert again.delivery_info["routing_key"] == "vip"
    assert desk.size("celery") == 0


def test_it_keeps_its_queue_when_it_waits_in_the_store_or_retries(desk: Desk) -> None:
    @desk.locked("order:{order}", name="again", bind=True, on_contention="queue")
    def again(self: Any, order: str) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0.5)

    result = again.apply_async(("42",), queue="vip")

    _, called = refused(desk, queue="vip")
    desk.run(called)
    desk.deliver("vip")

    assert result.state == "SUCCESS"
    assert desk.size("celery") == 0


def test_it_keeps_its_exchange_and_routing_key(desk: Desk, charge: LockedTask) -> None:
    queue = Queue("orders", Exchange("shop", "topic"), routing_key="order.#")
    queue(desk.channel).declare()
    charge.apply_async(("42",), exchange="shop", routing_key="order.eu")

    _, again = refused(desk, queue="orders")

    assert again.delivery_info["exchange"] == "shop"
    assert again.delivery_info["routing_key"] == "order.eu"


def test_it_keeps_its_priority(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(("42",), priority=7)

    _, again = refused(desk)

    assert again.properties["priority"] == 7


def test_it_keeps_what_the_caller_asked_for(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(
        ("42",),
        shadow="charge of 42",
        ignore_result=True,
        reply_to="me",
        time_limit=60,
        soft_time_limit=50,
        root_id="the-root",
        parent_id="the-parent",
        group_id="the-group",
        group_index=3,
    )

    first, again = refused(desk)

    assert again.headers["shadow"] == "charge of 42"
    assert again.headers["ignore_result"] is True
    assert again.headers["timelimit"] == [60, 50]
    assert again.headers["root_id"] == "the-root"
    assert again.headers["parent_id"] == "the-parent"
    assert again.headers["group"] == "the-group"
    assert again.headers["group_index"] == 3
    assert again.properties["reply_to"] == "me"
    assert again.headers["origin"] == first.headers["origin"]


def test_its_end_of_validity_stays_where_it_was(desk: Desk, charge: LockedTask) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1)
    charge.apply_async(("42",), expires=expires)

    first, again = refused(desk)
    with lock("order:42", app=desk.app, timeout=0):
        desk.run(again)
    third = desk.take()

    assert third is not None
    assert datetime.fromisoformat(first.headers["expires"]) == expires
    assert datetime.fromisoformat(again.headers["expires"]) == expires
    assert datetime.fromisoformat(third.headers["expires"]) == expires


def test_it_keeps_headers_and_stamps_and_adds_one_of_its_own(
    desk: Desk, charge: LockedTask
) -> None:
    signature = charge.s("42").set(headers={"tenant": "acme", "trace": {"id": 7}})
    signature.stamp(customer="c-1")
    signature.apply_async()

    first, again = refused(desk)
    with lock("order:42", app=desk.app, timeout=0):
        desk.run(again)
    third = desk.take()

    assert third is not None
    for message in (again, third):
        assert message.headers["tenant"] == "acme"
        assert message.headers["trace"] == {"id": 7}
        assert message.headers["stamps"] == first.headers["stamps"] == {"customer": "c-1"}
        assert message.headers["stamped_headers"] == ["customer"]
        # Nothing but the one header is added, and nothing piles up
        assert message.headers.keys() - first.headers.keys() == {"dlock"}


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
def test_it_stays_in_its_own_serializer(desk: Desk, charge: LockedTask, serializer: str) -> None:
    desk.app.conf.accept_content = ["json", "pickle", "yaml", "msgpack"]
    result = charge.apply_async(("42",), serializer=serializer)

    first, again = refused(desk)

    assert again.content_type == first.content_type
    assert again.content_encoding == first.content_encoding
    desk.run(again)
    assert result.get() == 1


def test_its_arguments_arrive_unchanged(desk: Desk) -> None:
    seen = []

    @desk.locked("order:42", name="seen")
    def see(order: Any, *, when: Any, fencing_token: int) -> None:
        seen.append((order, when))

    order, when = {"id": 1, "lines": [1, 2]}, datetime(2026, 11, 20, 12, tzinfo=UTC)
    see.apply_async((order,), {"when": when})

    _, again = refused(desk)
    desk.run(again)

    assert seen == [(order, when)]
