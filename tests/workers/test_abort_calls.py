"""``on_lost="abort"`` where there is no worker: plain calls, and tasks that run eagerly."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery.exceptions import Reject

from celery_dlock import Lease, LockLost, lock
from celery_dlock.core.events import Lost
from celery_dlock.delivery.abort import this_thread
from celery_dlock.locks.manager import LockManager
from tests.services.desk import Desk
from tests.services.losing import lose
from tests.services.until import until


def lose_it(desk: Desk, lease: Lease) -> None:
    """Lose *lease*, and stay where the strike is to come."""
    lose(desk.app, lease)
    threading.Event().wait(60)


def test_a_plain_call_ends_with_the_loss_and_holds_nothing(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str, *, lease: Lease) -> None:
        lose_it(desk, lease)

    with pytest.raises(LockLost, match="the test took it"):
        charge("42")

    assert desk.holders("order:42") == []
    until("it is told", lambda: desk.happened(Lost))


def test_a_body_whose_lease_is_lost_before_it_starts_does_not(desk: Desk) -> None:
    taken: list[Any] = []
    acquire = LockManager.acquire

    def acquire_and_lose_the_first(*args: Any, **options: Any) -> Any:
        taken.append(acquire(*args, **options))
        if len(taken) == 1:
            taken[0].terms[0].lose("the process was stopped")
        return taken[-1]

    desk.patch.setattr(LockManager, "acquire", acquire_and_lose_the_first)

    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str) -> None:
        desk.ran.append(len(taken))

    charge.delay("42")
    desk.deliver_all()

    assert desk.ran == [2]


def test_a_task_that_the_body_runs_eagerly_is_not_struck_for_the_bodys_loss(desk: Desk) -> None:
    steps: list[str] = []

    @desk.locked("order:{order}", name="part")
    def part(order: str, outer: list[Lease]) -> str:
        lose(desk.app, outer[0])
        until("the keeper has told", lambda: desk.happened(Lost))
        steps.append("part")
        return "whole"

    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str, *, lease: Lease) -> None:
        try:
            part.apply(("43", [lease]))
            steps.append("after")
        except LockLost as error:
            steps.append(error.key)
            raise

    charge.delay("42")
    desk.deliver()

    assert steps == ["part", "order:42"]
    assert desk.holders("order:42") == desk.holders("order:43") == []


@pytest.mark.parametrize("on_lost", ["abort", "flag"])
def test_a_plain_call_is_struck_with_its_caller_or_not_at_all(desk: Desk, on_lost: Any) -> None:
    went_on: list[bool] = []

    @desk.locked("order:{order}", name="part", on_lost="abort")
    def part(order: str, *, lease: Lease) -> None:
        if on_lost == "abort":
            lose_it(desk, lease)
        lose(desk.app, lease)
        until("the keeper has told", lambda: desk.happened(Lost))
        went_on.append(lease.lost)

    @desk.locked("order:{order}", name="charge", on_lost=on_lost)
    def charge(order: str) -> None:
        part(order)

    if on_lost == "abort":
        with pytest.raises(LockLost, match="the test took it"):
            charge("42")
    else:
        charge("42")

    assert went_on == ([] if on_lost == "abort" else [True])
    assert desk.holders("order:42") == []


@pytest.mark.parametrize("what", ["plain call", "lock()"])
def test_what_the_body_calls_is_left_in_order(desk: Desk, what: str) -> None:
    @desk.locked("order:{order}", name="part", on_lost="abort")
    def part(order: str, outer: Lease) -> None:
        lose_it(desk, outer)

    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str, *, lease: Lease) -> None:
        if what == "plain call":
            part("43", lease)
        with lock("order:43", app=desk.app):
            lose_it(desk, lease)

    with pytest.raises(LockLost, match="order:42"):
        charge("42")

    assert desk.holders("order:42") == desk.holders("order:43") == []


# A loss while ``retry()`` or ``replace()`` publishes: there is one message afterwards, not two.


class Broker:
    """Publishes as the application does; the body loses its lease right before or after."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = False
        self._desk = desk
        self._monkeypatch = monkeypatch

    def strike(self, lease: Lease, when: str) -> None:
        """At the next message."""
        publish = self._desk.app.amqp.send_task_message

        def send(*args: Any, **options: Any) -> Any:
            self._monkeypatch.undo()
            if when == "before":
                self._lose(lease)
            if self.fails:
                raise ConnectionError("the broker is away")
            sent = publish(*args, **options)
            if when == "after":
                self._lose(lease)
            return sent

        self._monkeypatch.setitem(vars(self._desk.app.amqp), "send_task_message", send)

    def _lose(self, lease: Lease) -> None:
        lose(self._desk.app, lease)
        until("the keeper has told", lambda: self._desk.happened(Lost))


@pytest.fixture
def broker(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(desk, monkeypatch)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["retry", "quiet retry", "replace"])
def test_what_the_body_hands_on_runs_and_nothing_else(
    desk: Desk, broker: Broker, how: str, when: str
) -> None:
    @desk.locked("order:{order}", name="other")
    def other(order: str) -> str:
        desk.ran.append("other")
        return "other"

    @desk.locked("order:{order}", name="charge", on_lost="abort", bind=True)
    def charge(self: Any, order: str, *, lease: Lease) -> str:
        desk.ran.append("charge")
        if len(desk.ran) == 1:
            broker.strike(lease, when)
            if how == "replace":
                self.replace(other.s(order))
            raise self.retry(countdown=0, throw=how == "retry")
        return "charge"

    result = charge.delay("42")
    desk.deliver()
    assert desk.size() == 1
    assert result.state != "FAILURE"
    desk.deliver_all()

    again = "other" if how == "replace" else "charge"
    assert desk.ran == ["charge", again]
    assert result.get() == again
    assert desk.holders("order:42") == []
    assert this_thread().top is None


def test_a_body_that_could_not_publish_runs_again(desk: Desk, broker: Broker) -> None:
    ended: list[BaseException | None] = []

    @desk.locked("order:{order}", name="charge", on_lost="abort", bind=True, acks_late=True)
    def charge(self: Any, order: str, *, lease: Lease) -> str:
        if not ended:
            broker.fails = True
            broker.strike(lease, "before")
            try:
                self.retry(countdown=0)
            except LockLost as error:
                ended.append(error.__context__)
                raise
        return "ran"

    result = charge.delay("42")
    desk.deliver_all()

    assert [type(error) for error in ended] == [Reject]
    assert result.get() == "ran"
