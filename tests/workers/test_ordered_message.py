"""A message that takes its place where it is published is the one that Celery would have sent."""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Task, chain, chord, group, signals
from kombu.entity import Exchange
from kombu.entity import Queue as BrokerQueue

from celery_dlock import BackendUnavailable, LockedTask, Ordered, lock
from celery_dlock.core.events import Parked
from celery_dlock.core.state import WaitMode
from celery_dlock.publishing import outbox
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.trouble import Trouble
from tests.workers.conftest import OPTIONS, nothing_is_left

KEY = "order:42"


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    desk.app.conf.accept_content = ["json", "yaml", "pickle", "msgpack"]

    @desk.locked("order:{order}", name="charge", on_contention=Ordered())
    def charge(order: str, before: int = 0) -> int:
        return before + 1

    return charge


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"a canvas"}))
@pytest.mark.parametrize("contended", [False, True])
def test_it_is_the_same(desk: Desk, charge: LockedTask, name: str, contended: bool) -> None:
    options = {**OPTIONS[name], "task_id": "one"}
    if name == "links":
        options |= {"link": charge.s(), "link_error": [charge.s("0"), charge.s("1")]}
    # Given the message as Celery publishes it by itself
    Task.apply_async(charge, ("42",), **options)
    usual = desk.receive()
    # And the same with a place in the queue
    if contended:
        with lock(KEY, app=desk.app, timeout=0):
            charge.apply_async(("42",), **options)
            assert desk.take() is None
    else:
        charge.apply_async(("42",), **options)
    ours = desk.receive()

    # Then there is no difference but our own header
    assert ours.headers.pop("dlock")["key"] == KEY
    assert ours.headers == usual.headers
    assert (ours.body, ours.content_type, ours.content_encoding) == (
        usual.body,
        usual.content_type,
        usual.content_encoding,
    )
    # Expiration is how long a broker keeps it; it waits in the store, and has "expires" itself
    of_the_way = ("delivery_tag", "delivery_info", "expiration")
    assert {k: v for k, v in ours.properties.items() if k not in of_the_way} == {
        k: v for k, v in usual.properties.items() if k not in of_the_way
    }


@pytest.mark.parametrize(
    "where",
    [
        {"queue": "slow"},
        {"exchange": "orders", "routing_key": "order.paid"},
        {"exchange": Exchange("orders", "topic"), "routing_key": "order.paid"},
    ],
    ids=["a queue", "a topic", "a topic, as an object"],
)
def test_it_goes_where_it_is_sent(desk: Desk, charge: LockedTask, where: dict[str, Any]) -> None:
    topic = Exchange("orders", "topic")
    queue = BrokerQueue("slow", topic, routing_key="order.*")
    desk.app.amqp.queues.add(queue)
    queue(desk.channel).declare()

    result = charge.apply_async(("42",), **where)

    desk.deliver("slow")
    assert result.get() == 1


def test_its_queue_is_there_before_it_is_woken(desk: Desk, charge: LockedTask) -> None:
    with lock(KEY, app=desk.app, timeout=0):
        charge.apply_async(("42",), queue="never-seen")
        assert desk.channel._has_queue("never-seen")


@contextmanager
def received_by(signal: Any, receiver: Callable[..., None]) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def test_signals_are_sent_once_and_where_it_is_published(desk: Desk, charge: LockedTask) -> None:
    seen: list[tuple[str, str]] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        seen.append(("before", headers["id"]))
        headers["tenant"] = "blue"

    def after(headers: dict[str, Any], **_: Any) -> None:
        seen.append(("after", headers["id"]))

    with (
        received_by(signals.before_task_publish, before),
        received_by(signals.after_task_publish, after),
        lock(KEY, app=desk.app, timeout=0),
    ):
        result = charge.delay("42")
        assert seen == [("before", result.id), ("after", result.id)]
    # And it is not published a second time when it is woken
    message = desk.receive()
    assert message.headers["tenant"] == "blue", "a receiver has its say"
    assert seen == [("before", result.id), ("after", result.id)]


def test_the_event_of_the_sending_is_celerys(desk: Desk, charge: LockedTask) -> None:
    desk.app.conf.task_send_sent_event = True
    seen = BrokerQueue("seen", Exchange("celeryev", "topic"), routing_key="#")
    seen(desk.channel).declare()

    with lock(KEY, app=desk.app, timeout=0):
        result = charge.delay("42")
        assert desk.size() == 0

    event = desk.receive("seen")
    assert (event.payload["type"], event.payload["uuid"]) == ("task-sent", result.id)
    assert event.payload["queue"] == "celery"
    assert desk.take("seen") is None


def test_message_protocol_1_is_published_as_usual(desk: Desk, charge: LockedTask) -> None:
    desk.app.conf.task_protocol = 1
    with lock(KEY, app=desk.app, timeout=0):
        charge.delay("42")
        assert desk.size() == 1
    assert desk.happened(Parked) == []


# A canvas goes on to a task that is ordered as published, while the store does not answer.


MakeOrdered = Callable[..., LockedTask]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    told: set[str] = set()
    monkeypatch.setattr(outbox, "_by_broker", told)
    return told


@pytest.fixture
def away(desk: Desk) -> Trouble:
    """The store keeps nothing and gives no locks."""
    trouble = Trouble(desk.patch)
    runtime(desk.app)
    trouble.beset(desk.store)
    trouble.keeps = trouble.answers = False
    return trouble


@pytest.fixture
def plain(desk: Desk) -> Any:
    @desk.app.task(name="plain")
    def plain(number: int) -> int:
        return number

    return plain


CANVASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "chain": lambda plain, charge, total: chain(plain.si(0), charge.si("42", 1)),
    "link": lambda plain, charge, total: plain.si(0).set(link=charge.si("42", 1)),
    "chain to a group": lambda plain, charge, total: chain(
        plain.si(0), group(charge.si("42", 1), charge.si("42", 1))
    ),
    "chord": lambda plain, charge, total: chord([plain.si(1), plain.si(2)], total.s("42")),
    "chord in a group": lambda plain, charge, total: group(
        chord([plain.si(1), plain.si(2)], total.s("42")), plain.si(0)
    ),
}


@pytest.mark.parametrize("canvas", CANVASES)
def test_it_goes_on_by_the_broker_and_nothing_fails(
    desk: Desk,
    make_ordered: MakeOrdered,
    plain: Any,
    away: Trouble,
    canvas: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    charge = make_ordered()

    @desk.locked("order:{order}", name="total", on_contention=Ordered())
    def total(numbers: list[int], order: str) -> None:
        desk.ran.append(sum(numbers))

    with caplog.at_level(logging.WARNING, "celery_dlock"):
        CANVASES[canvas](plain, charge, total).apply_async()
        before = [
            desk.deliver() for _ in range(3 if "in a group" in canvas else 1 + ("chord" in canvas))
        ]
    states = [desk.result(message.headers["id"]).state for message in before]
    assert states == ["SUCCESS"] * len(before)
    expected = 2 if canvas == "chain to a group" else 1
    assert desk.size() == expected
    assert sum("is ordered by its arrival" in line for line in caplog.messages) == 1

    # And the store is asked for their locks by the worker that gets them
    away.over()
    desk.deliver_all()
    assert desk.ran == ([3] if "chord" in canvas else [1] * expected)
    assert nothing_is_left(desk)


def test_who_publishes_by_itself_is_told(
    desk: Desk, make_ordered: MakeOrdered, away: Trouble
) -> None:
    charge = make_ordered()

    with pytest.raises(BackendUnavailable):
        charge.delay("42", 1)
    with pytest.raises(BackendUnavailable):
        chain(charge.si("42", 1), charge.si("42", 2)).apply_async()
    assert desk.size() == 0


def test_a_body_that_publishes_by_itself_is_told(
    desk: Desk, make_ordered: MakeOrdered, away: Trouble
) -> None:
    charge = make_ordered()
    told: list[Exception] = []

    @desk.app.task(name="relay")
    def relay() -> None:
        for task_id in (None, "mine"):
            try:
                charge.apply_async(("42", 1), task_id=task_id)
            except BackendUnavailable as exc:
                told.append(exc)

    relay.delay()
    desk.deliver()
    assert len(told) == 2
    assert desk.size() == 0


def test_what_the_store_heard_runs_once(desk: Desk, make_ordered: MakeOrdered, plain: Any) -> None:
    charge = make_ordered()
    backend = desk.store
    enter = backend.enter

    def unheard(claim: Any, message: bytes | None = None) -> Any:
        reply = enter(claim, message)
        if claim.wait is WaitMode.ENQUEUE:
            raise BackendUnavailable("the answer was lost")
        return reply

    desk.patch.setattr(backend, "enter", unheard)
    result = chain(plain.si(0), charge.si("42", 1)).apply_async()
    desk.deliver_all()
    assert result.get() == 1
    assert desk.ran == [1]
    assert nothing_is_left(desk)
