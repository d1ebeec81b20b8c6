"""A loss while ``retry()`` or ``replace()`` publishes: there is one message afterwards, not two."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Reject

from celery_dlock import Lease, LockLost
from celery_dlock.core.events import Lost
from celery_dlock.delivery.abort import this_thread
from tests.services.desk import Desk
from tests.services.losing import lose
from tests.services.until import until


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
    ran: list[str] = []

    @desk.locked("order:{order}", name="other")
    def other(order: str) -> str:
        ran.append("other")
        return "other"

    @desk.locked("order:{order}", name="charge", on_lost="abort", bind=True)
    def charge(self: Any, order: str, *, lease: Lease) -> str:
        ran.append("charge")
        if len(ran) == 1:
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
    assert ran == ["charge", again]
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


def test_a_task_that_is_not_aborted_leaves_nothing_behind(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str) -> int:
        if self.request.retries < 2:
            self.retry(countdown=0)
        return int(self.request.retries)

    result = charge.delay("42")
    desk.deliver_all()

    assert result.get() == 2
    assert this_thread().top is None
