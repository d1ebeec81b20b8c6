"""What sinks are told: templates and never keys, the waits, and what the message has carried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_dlock import LockContended, LockTimeout, Ordered, lock
from celery_dlock.core.events import (
    Acquired,
    Contended,
    DeadLettered,
    Event,
    Parked,
    Rescheduled,
    Subject,
    TimedOut,
    Woken,
)
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim
from tests.services.desk import Desk, open_desk
from tests.workers.conftest import charging


class Trace:
    """A sink that is made for its app, and counts how often a message was given to it."""

    made: list[tuple[Any, Trace]]

    def __init__(self) -> None:
        self.events: list[Event] = []

    @classmethod
    def from_app(cls, app: Celery) -> Trace:
        sink = cls()
        cls.made.append((app, sink))
        return sink

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def carry(self, subject: Subject) -> dict[str, str]:
        return {"hops": subject.carried.get("hops", "") + "."}


@pytest.fixture
def desk() -> Iterator[Desk]:
    Trace.made = []
    with open_desk(dlock_sinks=[Trace]) as made:
        yield made


def told(kind: type[Event]) -> list[Any]:
    """The events of one kind that the only sink has heard."""
    ((_, sink),) = Trace.made
    return [event for event in sink.events if isinstance(event, kind)]


def test_a_sink_that_wants_to_know_its_app_is_made_once_for_it(desk: Desk) -> None:
    charge = charging(desk)
    charge.delay(1)
    charge.delay(2)
    desk.deliver_all()
    ((app, _),) = Trace.made
    assert app is desk.app
    assert len(told(Acquired)) == 2


def test_a_rescheduled_message_carries_it_over_each_attempt(desk: Desk) -> None:
    charge = charging(desk)
    with lock("order:1", app=desk.app):
        charge.delay(1)
        for _ in range(3):
            desk.deliver()
    desk.deliver()

    assert len(told(Rescheduled)) == 3
    hops = [e.subject.carried.get("hops") for e in told(Contended) if e.subject.label != "lock()"]
    assert hops == [None, ".", ".."]
    acquired = told(Acquired)[-1]
    assert acquired.subject.carried == {"hops": "..."}
    assert acquired.waited > 0
    assert acquired.since_woken is None


def test_a_parked_message_carries_it_through_the_store(desk: Desk) -> None:
    charge = charging(desk, on_contention="queue")
    with lock("order:1", app=desk.app):
        charge.delay(1)
        desk.deliver()
        (parked,) = told(Parked)
        assert parked.refused
    desk.deliver()

    (woken,) = told(Woken)
    assert woken.subject.carried == {"hops": "."}
    acquired = told(Acquired)[-1]
    assert acquired.subject.carried == {"hops": "."}
    assert acquired.waited >= acquired.since_woken >= 0
    ((_, sink),) = Trace.made  # and never a key
    assert {event.subject.label for event in sink.events} == {"order:{order}", "lock()"}


def test_who_takes_its_place_as_it_is_published_was_not_refused(desk: Desk) -> None:
    charge = charging(desk, on_contention=Ordered())
    charge.delay(1)
    desk.deliver()

    (parked,) = told(Parked)
    assert not parked.refused
    acquired = told(Acquired)[-1]
    assert acquired.subject.carried == {"hops": "."}


def test_a_task_that_is_unknown_here_has_no_label(desk: Desk) -> None:
    charge = charging(desk, on_contention="queue")
    with lock("order:1", app=desk.app):
        charge.delay(1)
        desk.deliver()
        del desk.app.tasks["charge"]
    assert {event.subject.label for event in told(Woken) + told(DeadLettered)} == {""}


def test_a_lock_that_is_not_to_be_had_is_told_like_a_task(desk: Desk) -> None:
    desk.store.enter(Claim("order:1", "other:0:0", "nonce", ttl=60 * SECOND))

    with pytest.raises(LockContended), lock("order:1", app=desk.app, timeout=0):
        pass
    with pytest.raises(LockTimeout), lock("order:1", app=desk.app, timeout=0.01):
        pass

    refused = told(Contended)
    assert [(event.key, event.holder) for event in refused] == [("order:1", "other")] * 2
    (late,) = told(TimedOut)
    assert late.waited >= 0.01
