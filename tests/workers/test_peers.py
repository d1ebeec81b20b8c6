"""What celery-once, celery-singleton and celery-heimdall ask of themselves, asked of ours.

Each row is a behaviour that a test suite of theirs is about, in our words, and what ours does: the
same, or something else on purpose, with the reason. Their URLs, files and caches of connections are
left out: a store is a store here (``tests/contract``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_dlock import DuplicateTask, LockContended, LockedTask, Unique, lock
from celery_dlock.ops import unique as ops
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.services.unique import Make, Runs, claims


@dataclass(frozen=True)
class Bench:
    """What each row works with."""

    desk: Desk
    make: Make
    runs: Runs
    patch: pytest.MonkeyPatch

    def claims(self, report: LockedTask) -> Any:
        return claims(self.desk, report)


Check = Callable[[Bench], None]

# The same.


def a_duplicate_has_the_id_of_the_one_that_lives(on: Bench) -> None:
    report = on.make()
    assert len({report.delay(1).id for _ in range(10)}) == on.desk.size() == 1


def a_duplicate_raises_with_the_id_that_lives(on: Bench) -> None:
    report = on.make(Unique(on_duplicate="raise"))
    first = report.delay(1)
    with pytest.raises(DuplicateTask) as caught:
        report.delay(1)
    assert caught.value.task_id == first.id
    assert first.id in repr(caught.value)


def another_call_is_published(on: Bench) -> None:
    report = on.make()
    assert len({report.delay(day).id for day in range(5)}) == on.desk.size() == 5


def the_call_after_success_is_a_new_one(on: Bench) -> None:
    report = on.make(Unique(on_duplicate="raise"))
    first = report.delay(1)
    on.desk.deliver()
    assert report.delay(1).id != first.id


def the_call_after_a_failure_is_a_new_one(on: Bench) -> None:
    report = on.make("done", lambda _: 1 / 0)
    first = report.delay(1)
    on.desk.deliver()
    assert report.delay(1).id != first.id


def a_retry_passes_and_is_the_same_task(on: Bench) -> None:
    def once_more(task: Any) -> None:
        if not task.request.retries:
            raise task.retry(countdown=0)

    report = on.make(Unique(on_duplicate="raise"), once_more)
    report.delay(1)
    on.desk.deliver_all()
    assert on.runs == [1, 1]
    assert on.claims(report) is None


def it_ends_before_the_body(on: Bench) -> None:
    first = on.make("start", on.claims).delay(1)
    on.desk.deliver()
    assert first.get() == "None"


def by_position_or_name_is_the_same(on: Bench) -> None:
    report = on.make()
    report.delay(1, 2)
    assert report.delay(depth=2, day=1).is_duplicate


def what_counts_is_chosen(on: Bench) -> None:
    report = on.make(Unique(by="{day}"))
    report.delay(1, 2)
    assert report.delay(day=1, depth=3).is_duplicate
    assert not report.delay(2, 2).is_duplicate


def a_default_counts_as_if_it_were_given(on: Bench) -> None:
    report = on.make(Unique(by="{depth}"))
    report.delay("a")
    assert report.delay("b", 1).is_duplicate
    assert not report.delay("c", 2).is_duplicate


def nothing_counts_but_the_task(on: Bench) -> None:
    report = on.make(Unique(by="any"))
    report.delay(1)
    assert report.delay(2).is_duplicate


def a_callable_says_what_counts(on: Bench) -> None:
    report = on.make(Unique(by=lambda day, depth: f"day {day}"))
    report.delay(1, 1)
    assert report.delay(1, 2).is_duplicate


def it_may_be_retried_for_any_error(on: Bench) -> None:
    report = on.make(autoretry_for=(Exception,))
    report.delay(1)
    assert report.delay(1).is_duplicate


def a_dict_has_no_order_and_every_letter_counts(on: Bench) -> None:
    report = on.make(name="éxample")
    report.delay({"é": {"a": 1, "b": "č"}, "d": [1, "2"]})
    assert report.delay({"d": [1, "2"], "é": {"b": "č", "a": 1}}).is_duplicate
    assert not report.delay({"d": [1, "2"], "é": {"b": "c", "a": 1}}).is_duplicate


def a_uuid_needs_no_encoder(on: Bench) -> None:
    report, one = on.make(), uuid.uuid4()
    report.delay(one)
    assert report.delay(uuid.UUID(str(one))).is_duplicate
    assert not report.delay(uuid.uuid4()).is_duplicate


def what_cannot_be_published_has_no_claim(on: Bench) -> None:
    report = on.make(Unique(by="{day}"))
    with pytest.raises(Exception, match=r"(?i)serializable"):
        report.delay(1, object())
    assert on.claims(report) is None


def who_lives_can_be_asked_for(on: Bench) -> None:
    first = on.make(Unique(by="{day}")).delay(1)
    (found,) = ops.living(runtime(on.desk.app).backend, match="report(1)")
    assert found.task_id == first.id


def what_is_sent_by_its_name_is_unique_too(on: Bench) -> None:
    on.make(Unique(period=3600))
    first, second = (on.desk.app.send_task("report", (1,)) for _ in range(2))
    on.desk.deliver_all()
    assert (first.get(), on.runs) == ("1", [1])
    assert second.get()["skipped"]


def a_period_outlasts_the_task(on: Bench) -> None:
    report = on.make(Unique(period=3600))
    first = report.delay(1)
    on.desk.deliver()
    assert report.delay(1).id == first.id


# Something else, on purpose.


def a_duplicate_has_the_result_of_the_other(on: Bench) -> None:
    """It is of more use than none."""
    report = on.make()
    report.delay(1)
    again = report.delay(1)
    on.desk.deliver()
    assert again.get() == "1"


def the_error_says_whose_end_it_is(on: Bench) -> None:
    """Nobody knows when a task ends."""
    report = on.make(Unique(on_duplicate="raise"))
    first = report.delay(1)
    with pytest.raises(DuplicateTask, match=f"{first.id}, which lives"):
        report.delay(1)


def what_runs_for_longer_still_lives(on: Bench) -> None:
    """A claim that ends by the clock, while its task runs, is none."""

    def much_later(task: Any) -> bool:
        on.patch.setattr("celery_dlock.core.unique.GRACE", -1.0)
        return bool(task.delay(1).is_duplicate)

    first = on.make("done", much_later).delay(1)
    on.desk.deliver_all()
    assert (first.get(), on.runs) == ("True", [1])


def its_task_says_for_how_long(on: Bench) -> None:
    """Two calls of one task cannot mean different things by being unique."""
    on.make(Unique(ttl=600)).delay(1)
    message = on.desk.take()
    assert message is not None
    assert message.headers["dlock_unique"]["ttl"] == 600


def what_runs_where_it_is_called_has_no_claim(on: Bench) -> None:
    """Nothing is published; the lock is enough."""
    on.desk.app.conf.task_always_eager = True
    report = on.make("done", on.claims)
    assert report.delay(1).get() == "None"
    assert report.delay(1).get() == "None"


def arguments_are_not_shown(on: Bench) -> None:
    """They may be secret."""
    report = on.make()
    report.delay("4111-1111")
    (found,) = ops.living(runtime(on.desk.app).backend)
    assert "4111" not in found.claim


def what_may_be_published_keeps_its_claim(on: Bench) -> None:
    """The message may be there. It is believed for a minute."""

    def breaks(*_: Any, **__: Any) -> None:
        raise OperationalError("the connection is gone")

    report = on.make()
    with on.patch.context() as patch:
        patch.setattr(on.desk.app.amqp.Producer, "publish", breaks)
        with pytest.raises(OperationalError):
            report.delay(1)
    assert report.delay(1).is_duplicate


def a_person_ends_one_and_nobody_all(on: Bench) -> None:
    """All that live would lose theirs."""
    report = on.make(Unique(by="{day}"))
    for day in (1, 2):
        report.delay(day)
    (found,) = ops.living(runtime(on.desk.app).backend, match="report(1)")
    ops.end(on.desk.app, found)
    assert not report.delay(1).is_duplicate
    assert report.delay(2).is_duplicate


def a_base_says_it_for_many_tasks(on: Bench) -> None:
    """What a call gets is told where its task is, not in a setting."""

    class Raises(LockedTask):
        abstract = True
        lock_unique = Unique(on_duplicate="raise")

    @on.desk.app.task(base=Raises, name="other")
    def other(day: int) -> None: ...

    other.delay(1)
    with pytest.raises(DuplicateTask):
        other.delay(1)


def a_name_begins_with_its_task(on: Bench) -> None:
    """No two tasks meet, so no task needs a prefix."""
    one, other = (on.make(Unique(by="same"), name=name) for name in ("one", "other"))
    assert not one.delay(1).is_duplicate
    assert not other.delay(1).is_duplicate


#: Peer, what it asks, and ours, which does the same.
SAME: list[tuple[str, str, Check]] = [
    ("once", "a second call raises", a_duplicate_raises_with_the_id_that_lives),
    ("once", "another call is queued", another_call_is_published),
    ("once", "after success it is free", the_call_after_success_is_a_new_one),
    ("once", "a retry is not refused", a_retry_passes_and_is_the_same_task),
    ("once", "unlock_before_run", it_ends_before_the_body),
    ("once", "args and kwargs give one key", by_position_or_name_is_the_same),
    ("once", "keys restricts the key", what_counts_is_chosen),
    ("once", "autoretry_for", it_may_be_retried_for_any_error),
    ("once", "nested, unicode", a_dict_has_no_order_and_every_letter_counts),
    ("singleton", "ten calls, one id", a_duplicate_has_the_id_of_the_one_that_lives),
    ("singleton", "other arguments, other ids", another_call_is_published),
    ("singleton", "after success it is free", the_call_after_success_is_a_new_one),
    ("singleton", "after an error it is free", the_call_after_a_failure_is_a_new_one),
    ("singleton", "the existing id", who_lives_can_be_asked_for),
    ("singleton", "a failed call frees it and raises", what_cannot_be_published_has_no_claim),
    ("singleton", "raise_on_duplicate", a_duplicate_raises_with_the_id_that_lives),
    ("singleton", "unique_on", what_counts_is_chosen),
    ("singleton", "unique_on a default", a_default_counts_as_if_it_were_given),
    ("singleton", "unique_on nothing", nothing_counts_but_the_task),
    ("singleton", "a JSON encoder", a_uuid_needs_no_encoder),
    ("heimdall", "unique", a_duplicate_has_the_id_of_the_one_that_lives),
    ("heimdall", "after success it is free", the_call_after_success_is_a_new_one),
    ("heimdall", "unique_raises", a_duplicate_raises_with_the_id_that_lives),
    ("heimdall", "a key", nothing_counts_but_the_task),
    ("heimdall", "a callable key", a_callable_says_what_counts),
    ("heimdall", "other arguments", another_call_is_published),
    ("heimdall", "send_task", what_is_sent_by_its_name_is_unique_too),
    ("heimdall", "unique_wait_for_expiry", a_period_outlasts_the_task),
]

#: And where ours does something else, for the reason that it gives.
INSTEAD: list[tuple[str, str, Check]] = [
    ("once", "graceful gives none", a_duplicate_has_the_result_of_the_other),
    ("once", "the error has a countdown", the_error_says_whose_end_it_is),
    ("once", "after its timeout it is free", what_runs_for_longer_still_lives),
    ("once", "a timeout for one call", its_task_says_for_how_long),
    ("once", "eager calls take and free it", what_runs_where_it_is_called_has_no_claim),
    ("once", "the key shows the arguments", arguments_are_not_shown),
    ("singleton", "also when the broker is gone", what_may_be_published_keeps_its_claim),
    ("singleton", "raise_on_duplicate for an app", a_base_says_it_for_many_tasks),
    ("singleton", "lock_expiry", what_runs_for_longer_still_lives),
    ("singleton", "clear_locks", a_person_ends_one_and_nobody_all),
    ("heimdall", "the error says when it expires", the_error_says_whose_end_it_is),
    ("heimdall", "a lock_prefix for one task", a_name_begins_with_its_task),
]


def rows(table: list[tuple[str, str, Check]]) -> Any:
    params = [pytest.param(ours, id=f"{peer}: {asks}") for peer, asks, ours in table]
    return pytest.mark.parametrize("ours", params)


@pytest.fixture
def on(desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(desk, make, runs, monkeypatch)


@rows(SAME)
def test_ours_does_the_same(on: Bench, ours: Check) -> None:
    ours(on)


@rows(INSTEAD)
def test_ours_does_something_else_on_purpose(on: Bench, ours: Check) -> None:
    ours(on)


# What celery-heimdall asks of its rate limits.


def test_heimdall_times_and_per_are_a_limit_and_a_cooldown(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs
) -> None:
    """Six calls of two in ten seconds come in pairs."""
    call = make(None, key="amazon", limit=2, cooldown=10, on_contention="queue")
    for number in range(6):
        call.delay(number)

    for ran in (2, 4, 6):
        desk.deliver_all()
        assert runs == list(range(ran))
        clock.advance(10)
        desk.sweep()


def test_heimdall_a_rate_that_is_computed_is_refused_for_a_key_has_one_limit(
    desk: Desk, make: Make, runs: Runs
) -> None:
    """Two rates are two keys of two tasks: who is to have less has another one."""
    few = make(None, name="few", key="few:{day}", limit=1, cooldown=30, on_contention="skip")
    many = make(None, name="many", key="many:{day}", limit=2, cooldown=30, on_contention="skip")

    for task in (few, many):
        for _ in range(3):
            task.delay(10)
    desk.deliver_all()

    assert runs == [10, 10, 10]


def test_heimdall_waiting_for_its_rate_is_none_of_the_tasks_retries(
    desk: Desk, clock: ManualClock, make: Make, runs: Runs
) -> None:
    call = make(None, cooldown=10, max_retries=0)
    call(0)
    result = call.delay(1)

    desk.deliver()
    clock.advance(10)
    desk.deliver()

    assert (result.get(), runs) == ("1", [0, 1])


def test_heimdall_only_after_is_a_lock_with_a_cooldown(desk: Desk, clock: ManualClock) -> None:
    def only_after() -> bool:
        try:
            with lock("hourly", app=desk.app, timeout=0, cooldown=3600):
                return True
        except LockContended:
            return False

    assert (only_after(), only_after()) == (True, False)
    clock.advance(3600)
    assert only_after()
