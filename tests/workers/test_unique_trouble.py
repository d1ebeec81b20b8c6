"""Unique tasks in trouble: lost, late or double; and no task ends the claim of another."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_dlock import ConfigurationError, Unique
from celery_dlock.core.events import Dropped, Unavailable
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.locks.manager import LockManager
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.unique import UNIQUE
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.unique import UNTIL, Away, Make, claims, once_more, unheard, without_answer
from tests.services.until import until as wait_until

pytestmark = pytest.mark.stores


def test_what_was_lost_for_a_minute_is_published_again(desk: Desk, make: Make) -> None:
    report = make()
    first = report.delay(1)
    desk.take()  # and lose
    assert report.delay(1).is_duplicate
    assert desk.size() == 0

    unheard(desk.patch)
    again = report.delay(1)

    assert (again.id, again.is_duplicate, desk.size()) == (first.id, True, 1)
    desk.deliver()
    assert (desk.ran, again.get()) == ([1], "1")


@UNTIL
@pytest.mark.parametrize("first", [0, 1])
def test_and_once_however_long_the_backlog_is_between_the_two(
    desk: Desk, clock: ManualClock, make: Make, until: str, first: int
) -> None:
    """The store remembers other finished tasks for ``dlock_done_ttl``."""
    report, plain = make(until, key="day:{day}"), make("done", name="plain", key="day:{day}")
    plain.delay(2)
    desk.deliver()
    unheard(desk.patch)
    result = report.delay(1)
    assert report.delay(1).id == result.id
    messages = [desk.take(), desk.take()]
    one, other = messages[first], messages[1 - first]
    assert one is not None
    assert other is not None

    desk.run(one)
    clock.advance(2 * runtime(desk.app).remembers)
    desk.run(other)

    assert desk.ran == [2, 1]
    assert result.get() == "1"
    assert claims(desk, report) is None
    assert not report.delay(1).is_duplicate


def test_a_retry_that_is_lost_is_published_again_as_that_attempt(desk: Desk, make: Make) -> None:
    report = make("done", once_more)
    first = report.delay(1)
    desk.deliver()
    desk.take()  # and lose

    unheard(desk.patch)
    again = report.delay(1)

    assert again.id == first.id
    assert desk.deliver_all() == 1
    assert (desk.ran, again.get()) == ([1, 1], "attempt 1")
    assert claims(desk, report) is None


def test_a_copy_of_an_earlier_attempt_leaves_the_claim(desk: Desk, make: Make) -> None:
    report = make("done", once_more)
    first = report.delay(1)
    message = desk.deliver()
    retry = desk.receive()

    report.apply_async((1,), task_id=first.id, headers={UNIQUE: message.headers[UNIQUE]})
    desk.deliver()

    assert len(desk.happened(Dropped)) == 1
    assert report.delay(1).id == first.id
    desk.run(retry)
    assert desk.ran == [1, 1]
    assert claims(desk, report) is None


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_claim_of_a_run_whose_worker_died(desk: Desk, make: Make, acks_late: bool) -> None:
    """The lock store does not show it any more: gone, or delivered again by the broker."""
    report = make("done", acks_late=acks_late)
    first = report.delay(1)
    unique = report.lock_definition.unique
    assert unique is not None
    dead = UniqueClaim(f"{first.id}:0:0", "report", "dead:1", 0.0, "report", acked=not acks_late)
    UniqueClaims(desk.store).meet(unique.name((1,), {}), dead, 60, None)
    desk.take()

    again = report.delay(1)

    assert (again.id == first.id) is acks_late
    assert desk.deliver_all() == 1
    assert desk.ran == [1]
    assert claims(desk, report) is None


def test_without_an_answer_of_the_store_it_is_published_and_the_worker_asks(
    desk: Desk, make: Make
) -> None:
    report = make()
    with desk.patch.context() as patch:
        Away(desk, patch)
        results = [report.delay(1) for _ in range(2)]

    assert [result.is_duplicate for result in results] == [False, False]
    assert len(desk.happened(Unavailable)) == 2
    desk.deliver_all()
    assert desk.ran == [1, 1]
    assert claims(desk, report) is None


@UNTIL
def test_one_that_comes_back_as_the_store_was_away_is_no_new_call(
    desk: Desk, make: Make, until: str
) -> None:
    """Else it might end as the duplicate of another, and leave a claim that swallows calls."""
    report = make(until, key="day:{day}")
    with desk.patch.context() as patch:
        Away(desk, patch)
        results = [report.delay(1) for _ in range(2)]

    with desk.patch.context() as patch:
        patch.setattr(desk.store, "enter", without_answer())
        for _ in results:
            desk.deliver()

    assert report.delay(1).is_duplicate
    assert desk.deliver_all() == 2
    assert desk.ran
    assert claims(desk, report) is None
    assert not report.delay(1).is_duplicate


def test_one_that_replaces_itself_is_a_new_call(desk: Desk, make: Make) -> None:
    """Under the same id, of other arguments: theirs is the claim from then on."""

    def goes_on(task: Any) -> None:
        if not task.request.replaced_task_nesting:
            task.replace(report.s(2))

    report = make("done", goes_on)
    first = report.delay(1)
    desk.deliver()

    assert report.delay(2).id == first.id
    assert desk.deliver_all() == 1
    assert desk.ran == [1, 2]


@UNTIL
def test_a_worker_that_hears_nothing_of_the_claim_goes_on_under_its_lock(
    desk: Desk, make: Make, until: str
) -> None:
    desk.patch.setattr("celery_dlock.locks.pending_releases.FIRST_PAUSE", 0.01)
    report = make(until, key="day:{day}")
    report.delay(1)
    with desk.patch.context() as patch:
        Away(desk, patch)
        desk.deliver()
        assert (desk.ran, desk.holders("day:1"), desk.size()) == ([1], [], 0)

    # The store is told when it is back, and the next call is another one
    wait_until("the claim has ended", lambda: claims(desk, report) is None)
    assert not report.delay(1).is_duplicate


@UNTIL
def test_a_claim_whose_process_died_before_the_store_heard_of_its_end_is_believed_for_a_minute(
    desk: Desk, make: Make, until: str
) -> None:
    desk.patch.setattr(LockManager, "tell_later", lambda *_: None)
    report = make(until, key="day:{day}")
    report.delay(1)
    with desk.patch.context() as patch:
        Away(desk, patch)
        desk.deliver()
    assert report.delay(1).is_duplicate
    assert desk.size() == 0

    # What it answers is published again then, and ends it
    unheard(desk.patch)
    assert report.delay(1).is_duplicate
    assert desk.deliver_all() == 1
    assert desk.ran == [1]
    assert not report.delay(1).is_duplicate


def test_what_fails_before_it_comes_to_its_lock_has_ended(desk: Desk, make: Make) -> None:
    days = ["day:1"]

    def key(day: Any, depth: int = 1) -> str:
        return days[0]

    report = make(key=key)
    report.delay(1)

    days.clear()
    desk.deliver()

    days.append("day:1")

    assert claims(desk, report) is None


def test_no_call_that_somebody_depends_on_fails_for_its_claim(desk: Desk, make: Make) -> None:
    """Celery would take it for a failure of the task before, and a chord would never end."""
    report = make(Unique())
    with desk.patch.context() as patch:
        Away(desk, patch)
        report.apply_async((1,), task_id="first")

    nameless = report.apply_async((float("nan"),), task_id="nameless")

    def no_key(day: Any, depth: int = 1) -> str:
        raise ValueError("no such day")

    keyless = make(key=no_key, name="keyless").apply_async((1,), task_id="keyless")

    desk.deliver_all()
    assert desk.ran == [1]
    assert isinstance(nameless.result, ConfigurationError)
    assert isinstance(keyless.result, ValueError)


def test_headers_that_a_body_passes_on_say_nothing(desk: Desk, make: Make) -> None:
    def passes_on(task: Any) -> None:
        headers = {UNIQUE: task.request.get(UNIQUE)}
        other.apply_async(("other",), headers=headers)
        plain.apply_async(("plain",), headers=headers)

    other, plain = make("done", name="other"), make(None, name="plain")
    report = make("done", passes_on)
    report.delay(1)

    desk.deliver_all()

    assert sorted(map(str, desk.ran)) == ["1", "other", "plain"]
    assert claims(desk, report) is None
    assert claims(desk, other, "other") is None


def test_a_worker_that_knows_it_as_a_plain_task_ends_its_claim_too(desk: Desk, make: Make) -> None:
    """Of the version before, or after."""
    report = make()
    report.delay(1)
    del desk.app.tasks["report"]

    @desk.app.task(name="report")
    def plain(day: Any) -> None:
        desk.ran.append(day)

    desk.deliver()

    assert desk.ran == [1]
    assert claims(desk, report) is None


def test_what_was_certainly_not_published_claims_nothing(desk: Desk, make: Make) -> None:
    report = make(Unique(by="{day}"), serializer="json")

    with pytest.raises(Exception, match=r"(?i)serializable"):
        report.delay(1, object())

    assert claims(desk, report) is None


def test_what_may_have_been_published_does_and_who_repeats_the_call_publishes_it(
    desk: Desk, make: Make
) -> None:
    report = make()

    def breaks(*_: Any, **__: Any) -> None:
        raise OperationalError("the connection is gone")

    with desk.patch.context() as patch:
        patch.setattr(desk.app.amqp.Producer, "publish", breaks)
        for _ in range(2):
            with pytest.raises(OperationalError):
                report.delay(1)

    claim = claims(desk, report)
    assert claim is not None
    assert report.delay(1).id == report.delay(1).id == claim.task_id
    assert desk.deliver_all() == 1
    assert desk.ran == [1]


def test_a_caller_that_repeats_under_its_id_passes(desk: Desk, make: Make) -> None:
    report = make()

    for _ in range(2):
        assert not report.apply_async((1,), task_id="mine").is_duplicate

    assert desk.deliver_all() == 2
    assert desk.ran == [1]
