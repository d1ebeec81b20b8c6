"""A message that is published again, or comes back from the store, is the same message, later."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import celery
import pytest
from kombu.entity import Exchange, Queue
from kombu.message import Message

from celery_dlock import LockedTask, LockLost, lock
from celery_dlock.core.events import Parked, Woken
from tests.services.desk import Desk
from tests.workers.conftest import OPTIONS, refused

#: Before Celery 5.6.3 a ``RETRY`` is stored though its call ignores results (pull request 10184).
CALL_IS_NOT_HEARD = celery.VERSION < (5, 6, 3)

# What it was sent with.


def as_sent(message: Message) -> list[Any]:
    """All of *message* but what is said of its waits, and how it came."""
    ours = ("dlock", "dlock_delivery", "eta", "parent_id")
    way = ("delivery_tag", "delivery_info", "delivery_mode", "expiration", "origin")
    return [
        {name: value for name, value in message.headers.items() if name not in ours},
        {name: value for name, value in message.properties.items() if name not in way},
        (message.content_type, message.content_encoding, message.body),
    ]


@pytest.mark.parametrize("policy", ["reschedule", "queue"])
@pytest.mark.parametrize("name", OPTIONS)
def test_it_comes_back_as_it_was_and_runs(desk: Desk, name: str, policy: str) -> None:
    desk.app.conf.accept_content = ["json", "yaml", "pickle", "msgpack"]

    @desk.locked("order:{order}", name="charge", max_retries=0, on_contention=policy)
    def charge(order: str, before: int = 0) -> int:
        return before + 1

    links = {"link": charge.s(), "link_error": charge.si("0")} if name == "links" else {}
    result = charge.apply_async(("42",), **OPTIONS[name], **links)

    first, again = refused(desk)

    assert first.acknowledged
    assert as_sent(again) == as_sent(first)
    # One without a parent has itself then, as after a retry of Celery's
    assert first.headers["parent_id"] in (None, again.headers["parent_id"])
    assert again.headers["dlock"]["waits"] == 1
    if policy == "reschedule":
        with lock("order:42", app=desk.app, timeout=0):
            desk.run(again)
        again = desk.receive()
        assert as_sent(again) == as_sent(first), "nothing piles up"
    else:
        assert [type(e) for e in desk.events if isinstance(e, Parked | Woken)] == [Parked, Woken]
    desk.run(again)
    ignored = "RETRY" if CALL_IS_NOT_HEARD and policy == "reschedule" else "PENDING"
    assert desk.result(result.id).state == (ignored if result.ignored else "SUCCESS")


def test_it_keeps_its_task_id_and_its_retries(desk: Desk, charge: LockedTask) -> None:
    result = charge.apply_async(("42",))

    first, again = refused(desk)

    assert first.acknowledged
    assert again.headers["id"] == result.id
    assert again.headers["retries"] == 0
    assert again.properties["correlation_id"] == result.id
    desk.run(again)
    assert result.get() == 1


@pytest.mark.parametrize("policy", ["reschedule", "queue"])
@pytest.mark.parametrize(
    ("queue", "way"),
    [("vip", {"queue": "vip"}), ("orders", {"exchange": "shop", "routing_key": "order.eu"})],
    ids=["queue", "topic"],
)
def test_it_comes_back_the_way_it_came_and_so_does_its_retry(
    desk: Desk, policy: str, queue: str, way: dict[str, Any]
) -> None:
    orders = Queue("orders", Exchange("shop", "topic"), routing_key="order.#")
    desk.app.amqp.queues.add(orders)
    orders(desk.channel).declare()

    @desk.locked("order:{order}", name="again", bind=True, on_contention=policy)
    def again(self: Any, order: str) -> None:
        desk.ran.append(self.request.delivery_info["routing_key"])
        if not self.request.retries:
            raise self.retry(countdown=0.5)

    again.apply_async(("42",), **way)
    _, called = refused(desk, queue=queue)
    desk.run(called)
    desk.deliver(queue)

    assert desk.ran == [way.get("routing_key", queue)] * 2
    assert desk.size("celery") == desk.size(queue) == 0


# What hangs on it.


# What it knows of its past, and what people see of it meanwhile.


def test_the_header_counts_the_waits(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(("42",))

    _, second = refused(desk)
    with lock("order:42", app=desk.app, timeout=0):
        desk.run(second)
    third = desk.receive()

    assert second.headers["dlock"]["waits"] == 1
    assert third.headers["dlock"]["waits"] == 2
    assert second.headers["dlock"]["since"] == third.headers["dlock"]["since"] is not None


def test_what_waits_again_after_a_lost_run_has_waited_since_its_first_refusal(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="queue")
    def charge(order: str) -> None:
        raise LockLost("order:42")

    charge.delay("42")
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
    first = desk.deliver()
    again = desk.receive()

    assert again.headers["dlock"]["since"] == first.headers["dlock"]["since"] is not None


def test_the_refusals_of_an_older_attempt_do_not_count(desk: Desk) -> None:
    @desk.locked("order:{order}", name="twice", bind=True)
    def twice(self: Any, order: str) -> int:
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    result = twice.apply_async(("42",))
    _, again = refused(desk)
    assert again.headers["dlock"]["waits"] == 1

    # When the body retries, and the retried message is refused in its turn
    desk.run(again)
    _, retried = refused(desk)

    assert retried.headers["retries"] == 1
    assert retried.headers["dlock"]["waits"] == 1
    assert retried.headers["dlock"]["since"] > again.headers["dlock"]["since"]
    desk.run(retried)
    assert result.get() == 1


def test_each_delivery_is_one_of_its_own_whatever_a_header_says(desk: Desk) -> None:
    owners = []

    @desk.locked("order:{order}", name="owner", bind=True)
    def owner(self: Any, order: str) -> None:
        owners.append(self.lease.owner)

    for _ in range(2):
        forged = {"dlock_delivery": {"nonce": "of another", "content_type": "application/json"}}
        owner.apply_async(("42",), headers=forged)
    desk.deliver_all()

    assert len(set(owners)) == 2
    assert not any("of another" in name for name in owners)


def test_the_hook_and_the_event_of_a_retry_are_fired(desk: Desk) -> None:
    hooks = []

    class Hooked(LockedTask):
        abstract = True

        def on_retry(self, exc: Any, task_id: str, *rest: Any) -> None:
            hooks.append((type(exc).__name__, task_id))

    @desk.app.task(base=Hooked, name="hooked", lock_key="order:{order}")
    def hooked(order: str) -> None: ...

    events = desk.app.events.Receiver(desk.connection).queue(desk.channel)
    events.declare()
    result = hooked.apply_async(("42",))
    refused(desk)

    assert hooks == [("LockContended", result.id)]
    types = [message.payload["type"] for message in iter(events.get, None)]
    assert types == ["task-started", "task-retried"]
