"""When the claim of a unique task ends, and what leaves it standing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, TaskRevokedError
from celery.worker import state

from celery_dlock import Queue, Reschedule, Skip, Unique, lock
from tests.services.desk import Desk
from tests.services.unique import UNTIL, Make, Runs, claims, unheard
from tests.services.until import until as wait_until

pytestmark = pytest.mark.every_store


def test_until_start_it_ends_before_the_first_line_of_the_body(
    desk: Desk, make: Make, runs: Runs
) -> None:
    def calls(task: Any) -> bool:
        return bool(len(runs) > 1 or task.delay(1).is_duplicate)

    make("start", calls).delay(1)

    assert desk.deliver_all() == 2
    assert runs == [1, 1]


def test_until_done_it_stays_while_the_body_runs(desk: Desk, make: Make, runs: Runs) -> None:
    answers = []
    report = make("done", lambda task: answers.append(task.delay(1).is_duplicate))
    report.delay(1)

    desk.deliver_all()

    assert (runs, answers) == ([1], [True])


@UNTIL
@pytest.mark.parametrize("policy", [Reschedule(), Queue(), Queue(keep=True)], ids=repr)
def test_it_stays_while_the_task_waits_for_its_lock(
    desk: Desk, make: Make, runs: Runs, until: str, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make(until, key="day:{day}", on_contention=policy)
    first = report.delay(1)
    with lock("day:1", app=desk.app, timeout=0):
        desk.deliver()
        held = desk.size()

        again = report.delay(1)

        assert (again.id, again.is_duplicate, desk.size()) == (first.id, True, held)
        if isinstance(policy, Queue):  # the store shows that it waits, however long
            unheard(monkeypatch)
            assert report.delay(1).is_duplicate
            assert desk.size() == held
    desk.deliver_all()
    assert runs == [1]
    assert claims(desk, report) is None


def test_it_ends_when_the_body_fails(desk: Desk, make: Make) -> None:
    report = make("done", lambda _: 1 / 0)
    report.delay(1)

    desk.deliver()

    assert claims(desk, report) is None


@UNTIL
def test_it_ends_when_the_task_is_skipped(desk: Desk, make: Make, until: str) -> None:
    report = make(until, key="day:{day}", on_contention=Skip())
    report.delay(1)

    with lock("day:1", app=desk.app, timeout=0):
        desk.deliver()

    assert claims(desk, report) is None


def test_a_retry_keeps_it(desk: Desk, make: Make, runs: Runs) -> None:
    def once_more(task: Any) -> None:
        if not task.request.retries:
            raise task.retry(countdown=0)

    report = make("done", once_more)
    first = report.delay(1)
    desk.deliver()

    assert report.delay(1).id == first.id

    assert desk.deliver_all() == 1
    assert runs == [1, 1]
    assert claims(desk, report) is None


def test_a_retry_of_what_has_started_asks_nobody(desk: Desk, make: Make, runs: Runs) -> None:
    def once_more(task: Any) -> None:
        if not task.request.retries and len(runs) == 1:
            raise task.retry(countdown=0)

    report = make("start", once_more)
    report.delay(1)
    desk.deliver()

    assert not report.delay(1).is_duplicate

    assert desk.deliver_all() == 2
    assert runs == [1, 1, 1]


@pytest.mark.parametrize(
    ("ends", "stays"),
    [(Ignore(), False), (Reject("no", requeue=False), False), (Reject("no", requeue=True), True)],
    ids=repr,
)
def test_a_body_that_breaks_off(desk: Desk, make: Make, ends: Exception, stays: bool) -> None:
    def breaks_off(_: Any) -> None:
        raise ends

    report = make("done", breaks_off, acks_late=True)
    report.delay(1)

    desk.deliver()

    assert (claims(desk, report) is not None) is stays


def test_what_is_replaced_by_another_task_has_ended(desk: Desk, make: Make) -> None:
    @desk.app.task(name="other")
    def other() -> None: ...

    report = make("done", lambda task: task.replace(other.si()))
    report.delay(1)

    desk.deliver()

    assert claims(desk, report) is None
    assert desk.deliver_all() == 1


@UNTIL
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_message_that_is_revoked_or_expired_ends_it(
    desk: Desk, make: Make, runs: Runs, until: str, how: str, revoked: Callable[[str], None]
) -> None:
    report = make(until)
    first = report.apply_async((1,), expires=-1 if how == "expired" else None)
    if how == "revoked":
        revoked(first.id)

    with pytest.raises(TaskRevokedError):
        desk.deliver()

    assert runs == []
    wait_until("the claim has ended", lambda: claims(desk, report) is None)


@pytest.fixture
def revoked() -> Iterator[Callable[[str], None]]:
    yield state.revoked.add
    state.revoked.clear()


def test_for_its_period_it_stays_although_it_is_done(desk: Desk, make: Make, runs: Runs) -> None:
    report = make(Unique(period=3600))
    first = report.delay(1)
    desk.deliver()

    again = report.delay(1)

    assert (again.id, again.is_duplicate, again.get()) == (first.id, True, "1")
    assert (desk.size(), runs) == (0, [1])
