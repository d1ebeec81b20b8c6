"""Unique tasks: what is the same, what a duplicate call gets, and when the claim ends."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import group
from celery.exceptions import Ignore, Reject, TaskRevokedError
from celery.worker import state
from kombu.exceptions import OperationalError

from celery_dlock import (
    BackendUnavailable,
    ConfigurationError,
    DuplicateTask,
    LockedTask,
    Queue,
    Reschedule,
    Skip,
    Unique,
    lock,
)
from celery_dlock.core.events import Deduplicated, Dropped, Unavailable
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.unique import UNIQUE
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.until import until as wait_until

pytestmark = pytest.mark.every_store

Runs = list[Any]
Make = Callable[..., LockedTask]
UNTIL = pytest.mark.parametrize("until", ["done", "start"])


@pytest.fixture
def runs() -> Runs:
    """What the bodies were called with."""
    return []


@pytest.fixture
def make(desk: Desk, runs: Runs) -> Make:
    """``make(unique="done", …)``: a unique task on the desk; *does* is called in its body."""

    def make(unique: Any = "done", does: Callable[[Any], Any] | None = None, **options: Any) -> Any:
        @desk.locked(unique=unique, bind=True, **{"name": "report", **options})
        def report(self: Any, day: Any, depth: int = 1) -> str:
            runs.append(day)
            return str(does(self) if does else day)

        return report

    return make


def claims(desk: Desk, report: LockedTask, *args: Any) -> UniqueClaim | None:
    """The claim of a call, as it stands."""
    unique = report.lock_definition.unique
    assert unique is not None
    text = runtime(desk.app).backend.swap(unique.name(args or (1,), {}), None, None, 0)
    return None if text is None else UniqueClaim.decode(text)


# What a duplicate call gets.


@UNTIL
def test_while_one_lives_no_other_is_published(
    desk: Desk, make: Make, runs: Runs, until: str
) -> None:
    report = make(until)

    first, *more = [report.delay(1) for _ in range(5)]

    assert desk.size() == 1
    assert {result.id for result in more} == {first.id}
    assert [first.is_duplicate, *(result.is_duplicate for result in more)] == [False] + [True] * 4
    assert report.lock_definition.unique is not None
    told = [(report.lock_definition.unique.name((1,), {}), first.id)] * 4
    assert [(event.claim, event.living) for event in desk.happened(Deduplicated)] == told
    desk.deliver_all()
    assert runs == [1]
    assert more[0].get() == "1"


def test_or_an_error_with_its_id(desk: Desk, make: Make) -> None:
    report = make(Unique(on_duplicate="raise"))
    first = report.delay(1)

    with pytest.raises(DuplicateTask, match="report is not published") as caught:
        report.delay(1)

    assert (caught.value.task, caught.value.task_id) == ("report", first.id)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert desk.size() == 1


@UNTIL
def test_when_it_is_done_the_next_call_is_a_new_one(
    desk: Desk, make: Make, runs: Runs, until: str
) -> None:
    report = make(until)
    first = report.delay(1)
    desk.deliver()

    second = report.delay(1)

    assert (second.id != first.id, second.is_duplicate) == (True, False)
    desk.deliver_all()
    assert runs == [1, 1]
    assert claims(desk, report) is None


def test_how_many_calls_it_has_answered_is_counted(desk: Desk, make: Make) -> None:
    report = make()
    for _ in range(4):
        report.delay(1)

    claim = claims(desk, report)

    assert claim is not None
    assert (claim.name, claim.calls) == ("report", 3)
    assert claim.called >= claim.heard


# What is the same.


def test_what_differs_in_any_argument_is_not_the_same(desk: Desk, make: Make) -> None:
    report = make()

    for args, kwargs in [((1,), {}), ((2,), {}), ((1, 2), {}), ((1,), {"depth": 3})]:
        assert not report.apply_async(args, kwargs).is_duplicate

    assert desk.size() == 4


def test_however_an_argument_is_given_it_is_the_same(desk: Desk, make: Make) -> None:
    report = make()
    report.delay(1)

    for args, kwargs in [((), {"day": 1}), ((1, 1), {}), ((1,), {"depth": 1}), (("1",), {})]:
        assert report.apply_async(args, kwargs).is_duplicate

    assert desk.size() == 1


def test_or_what_by_says(desk: Desk, make: Make) -> None:
    report = make(Unique(by="{day}"))
    report.delay(1, 1)

    assert report.delay(1, 2).is_duplicate
    assert not report.delay(2, 1).is_duplicate


def test_an_argument_without_a_text_of_its_own_is_refused_and_by_is_named(
    desk: Desk, make: Make
) -> None:
    report = make(serializer="pickle")

    with pytest.raises(ConfigurationError, match=r"task report is unique.* say by="):
        report.delay(object())

    assert desk.size() == 0


def test_tasks_that_share_a_lock_are_not_each_others_duplicates(desk: Desk, make: Make) -> None:
    charge, refund = (make(name=name, key="order:{day}") for name in ("charge", "refund"))

    assert not charge.delay(1).is_duplicate
    assert not refund.delay(1).is_duplicate


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("end", "until="),
        (7, "unique= takes"),
        ({"until": "done"}, "unique= takes"),
        (lambda: Unique(on_duplicate="replace"), "on_duplicate="),  # type: ignore[arg-type]
        (lambda: Unique(on_unavailable="skip"), "on_unavailable="),  # type: ignore[arg-type]
        (lambda: Unique(ttl=0), "ttl must be"),
        (lambda: Unique(period=-1), "period must be"),
        (lambda: Unique(by="{nobody}"), "no parameter 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused_as_it_is_defined(make: Make, wrong: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make(wrong() if callable(wrong) else wrong)


# When the claim ends.


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
            monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
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


# Calls that somebody depends on.


@pytest.mark.parametrize("on_duplicate", ["existing", "raise"])
def test_a_duplicate_with_an_id_of_the_callers_is_published_and_skipped(
    desk: Desk, make: Make, runs: Runs, on_duplicate: Any
) -> None:
    report = make(Unique(on_duplicate=on_duplicate))
    first = report.delay(1)

    mine = report.apply_async((1,), task_id="mine")

    assert (mine.id, mine.is_duplicate, desk.size()) == ("mine", True, 2)
    desk.deliver_all()
    assert runs == [1]
    assert mine.get()["skipped"] is True
    assert mine.get()["holder"] == first.id
    assert claims(desk, report) is None


@pytest.mark.parametrize("how", [{"link": []}, {"link": "tell"}, {"link_error": "tell"}], ids=str)
def test_so_is_one_with_a_link_that_is_not_called_as_after_a_skip(
    desk: Desk, make: Make, runs: Runs, how: dict[str, Any]
) -> None:
    @desk.app.task(name="tell")
    def tell(result: Any) -> None:
        pytest.fail("nothing was done")

    report = make()
    first = report.delay(1)
    links = {name: tell.s() if link else link for name, link in how.items()}

    second = report.apply_async((1,), **links)

    assert (second.id == first.id) is not any(links.values())
    desk.deliver_all()
    assert runs == [1]
    assert second.get() == "1" if second.id == first.id else second.get()["holder"] == first.id


def test_and_a_member_of_a_chord_whose_body_runs(desk: Desk, make: Make, runs: Runs) -> None:
    desk.app.conf.result_backend = "cache+memory://"
    totals: list[Any] = []

    @desk.app.task(name="total")
    def total(results: list[Any]) -> None:
        totals.append(len(results))

    report = make(Unique(on_duplicate="raise"))

    group(report.s(1), report.s(1), report.s(2)).apply_async(link=None)
    (group(report.s(3), report.s(3)) | total.s()).apply_async()

    desk.deliver_all()
    assert sorted(runs) == [1, 2, 3]
    assert totals == [2]


# Messages whose claim is another matter.


def test_a_task_sent_by_its_name_takes_its_claim_in_the_worker(
    desk: Desk, make: Make, runs: Runs
) -> None:
    report = make("done", lambda task: claims(desk, task).task_id == task.request.id)  # type: ignore[union-attr]
    sent = desk.app.send_task("report", (1,))

    desk.deliver()

    assert sent.get() == "True"
    assert claims(desk, report) is None


def test_one_sent_by_its_name_is_skipped_while_another_waits(
    desk: Desk, make: Make, runs: Runs
) -> None:
    report = make("done", key="day:{day}", on_contention="queue")
    first = report.delay(1)
    with lock("day:1", app=desk.app, timeout=0):
        desk.deliver()
        sent = desk.app.send_task("report", (1,))

        desk.deliver()

        assert sent.get()["holder"] == first.id
    desk.deliver_all()
    assert runs == [1]


def test_a_claim_whose_message_nobody_has_seen_gives_way_to_one_that_is_here(
    desk: Desk, make: Make, runs: Runs
) -> None:
    report = make()
    report.delay(1)
    lost = desk.take()
    assert lost is not None
    sent = desk.app.send_task("report", (1,))

    desk.deliver()

    assert (sent.get(), runs) == ("1", [1])


def test_the_claim_that_the_message_names_ends_whatever_the_worker_thinks(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make()
    report.delay(1)
    other = make(None, name="not unique").lock_definition
    with monkeypatch.context() as patch:
        patch.setattr(desk.app.tasks["report"].__class__, "lock_definition", other)

        desk.deliver()

    assert runs == [1]
    assert claims(desk, report) is None


# Trouble.


def test_what_has_been_lost_for_a_minute_is_published_again_under_its_id(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make()
    first = report.delay(1)
    desk.take()  # and lose
    assert report.delay(1).is_duplicate
    assert desk.size() == 0

    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
    again = report.delay(1)

    assert (again.id, again.is_duplicate, desk.size()) == (first.id, True, 1)
    desk.deliver()
    assert (runs, again.get()) == ([1], "1")


def test_what_was_only_late_and_comes_twice_runs_once(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
    report = make()

    for _ in range(3):
        report.delay(1)

    assert desk.deliver_all() == 3
    assert runs == [1]
    assert len(desk.happened(Dropped)) == 2
    assert claims(desk, report) is None


def test_a_retry_that_is_lost_is_published_again_as_that_attempt(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once_more(task: Any) -> str:
        if not task.request.retries:
            raise task.retry(countdown=0)
        return f"attempt {task.request.retries}"

    report = make("done", once_more)
    first = report.delay(1)
    desk.deliver()
    desk.take()  # and lose

    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
    again = report.delay(1)

    assert again.id == first.id
    assert desk.deliver_all() == 1
    assert (runs, again.get()) == ([1, 1], "attempt 1")
    assert claims(desk, report) is None


def test_a_copy_of_an_attempt_that_is_over_leaves_the_next_one_its_claim(
    desk: Desk, make: Make, runs: Runs
) -> None:
    def once_more(task: Any) -> None:
        if not task.request.retries:
            raise task.retry(countdown=0)

    report = make("done", once_more)
    first = report.delay(1)
    message = desk.deliver()
    retry = desk.take()
    assert retry is not None

    report.apply_async((1,), task_id=first.id, headers={UNIQUE: message.headers[UNIQUE]})
    desk.deliver()

    assert len(desk.happened(Dropped)) == 1
    assert report.delay(1).id == first.id
    desk.run(retry)
    assert runs == [1, 1]
    assert claims(desk, report) is None


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_claim_of_a_run_whose_worker_died(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch, acks_late: bool
) -> None:
    """The lock store does not show it any more: gone, or delivered again by the broker."""
    report = make("done", acks_late=acks_late)
    first = report.delay(1)
    unique = report.lock_definition.unique
    assert unique is not None
    dead = UniqueClaim(f"{first.id}:0:0", "report", "dead:1", 0.0, "report", acked=not acks_late)
    UniqueClaims(runtime(desk.app).backend).meet(unique.name((1,), {}), dead, 60, None)
    desk.take()

    again = report.delay(1)

    assert (again.id == first.id) is acks_late
    assert desk.deliver_all() == 1
    assert runs == [1]
    assert claims(desk, report) is None


class Away:
    """A lock store that does not answer."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        def swap(*_: Any) -> None:
            raise BackendUnavailable("no answer")

        monkeypatch.setattr(runtime(desk.app).backend, "swap", swap)


def test_without_an_answer_of_the_store_it_is_published_and_the_worker_asks(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make()
    with monkeypatch.context() as patch:
        Away(desk, patch)
        results = [report.delay(1) for _ in range(2)]

    assert [result.is_duplicate for result in results] == [False, False]
    assert len(desk.happened(Unavailable)) == 2
    desk.deliver_all()
    assert runs == [1, 1]
    assert claims(desk, report) is None


def test_or_it_is_refused(desk: Desk, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    report = make(Unique(on_unavailable="raise"))
    Away(desk, monkeypatch)

    with pytest.raises(BackendUnavailable):
        report.delay(1)

    assert desk.size() == 0


@UNTIL
def test_a_worker_that_hears_nothing_of_the_claim_goes_on_under_its_lock(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    report = make(until, key="day:{day}")
    report.delay(1)
    with monkeypatch.context() as patch:
        Away(desk, patch)
        desk.deliver()
    assert (runs, desk.holders("day:1"), desk.size()) == ([1], [], 0)

    # Nobody has ended the claim: what it answers is published again in a minute, and ends it
    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
    assert report.delay(1).is_duplicate
    assert desk.deliver_all() == 1
    assert runs == [1]
    assert not report.delay(1).is_duplicate


def test_what_fails_before_it_comes_to_its_lock_has_ended(desk: Desk, make: Make) -> None:
    def no_key(day: Any, depth: int = 1) -> str:
        raise ValueError("no such day")

    report = make(key=no_key)
    report.delay(1)

    desk.deliver()

    assert claims(desk, report) is None


def test_no_call_that_somebody_depends_on_fails_for_its_claim(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery would take it for a failure of the task before, and a chord would never end."""
    report = make(Unique(on_unavailable="raise"))
    with monkeypatch.context() as patch:
        Away(desk, patch)
        report.apply_async((1,), task_id="first")

    nameless = report.apply_async((float("nan"),), task_id="nameless")

    desk.deliver_all()
    assert runs == [1]
    assert isinstance(nameless.result, ConfigurationError)


def test_a_member_of_a_canvas_takes_over_from_what_seems_to_be_lost(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make()
    report.delay(1)
    desk.take()
    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)

    mine = report.apply_async((1,), task_id="mine")

    desk.deliver_all()
    assert (mine.get(), runs) == ("1", [1])
    assert claims(desk, report) is None


def test_headers_that_a_body_passes_on_say_nothing_of_what_it_publishes(
    desk: Desk, make: Make, runs: Runs
) -> None:
    def passes_on(task: Any) -> None:
        headers = {UNIQUE: task.request.get(UNIQUE)}
        other.apply_async(("other",), headers=headers)
        plain.apply_async(("plain",), headers=headers)

    other, plain = make("done", name="other"), make(None, name="plain")
    report = make("done", passes_on)
    report.delay(1)

    desk.deliver_all()

    assert sorted(map(str, runs)) == ["1", "other", "plain"]
    assert claims(desk, report) is None
    assert claims(desk, other, "other") is None


@UNTIL
def test_what_was_delivered_before_and_never_ran_ends_its_claim(
    desk: Desk, make: Make, runs: Runs, until: str
) -> None:
    """A worker had prefetched it, and died: RabbitMQ says that it comes again."""
    report = make(until)
    report.delay(1)
    message = desk.take()
    assert message is not None
    message.delivery_info["redelivered"] = True

    desk.run(message)

    assert runs == [1]
    assert claims(desk, report) is None


def test_what_has_started_before_takes_nothing_from_who_was_called_since(
    desk: Desk, make: Make, runs: Runs
) -> None:
    report = make("start")
    report.delay(1)
    first = desk.take()
    assert first is not None
    first.delivery_info["redelivered"] = True
    name, ended = first.headers[UNIQUE]["name"], first.headers["id"]
    UniqueClaims(runtime(desk.app).backend).end(name, ended, 60, None)
    second = report.delay(1)

    desk.run(first)

    claim = claims(desk, report)
    assert claim is not None
    assert claim.task_id == second.id
    desk.deliver_all()
    assert runs == [1, 1]


def test_what_was_certainly_not_published_claims_nothing(desk: Desk, make: Make) -> None:
    report = make(Unique(by="{day}"), serializer="json")

    with pytest.raises(Exception, match=r"(?i)serializable"):
        report.delay(1, object())

    assert claims(desk, report) is None


def test_what_may_have_been_published_does(
    desk: Desk, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = make()

    def breaks(*_: Any, **__: Any) -> None:
        raise OperationalError("the connection is gone")

    with monkeypatch.context() as patch:
        patch.setattr(desk.app.amqp.Producer, "publish", breaks)
        with pytest.raises(OperationalError):
            report.delay(1)

    claim = claims(desk, report)
    assert claim is not None
    assert report.delay(1).id == claim.task_id


def test_a_caller_that_repeats_under_its_id_passes(desk: Desk, make: Make, runs: Runs) -> None:
    report = make()

    for _ in range(2):
        assert not report.apply_async((1,), task_id="mine").is_duplicate

    assert desk.deliver_all() == 2
    assert runs == [1]


# Where nothing is asked.


def test_what_runs_eagerly_or_is_called_takes_no_claim(desk: Desk, make: Make, runs: Runs) -> None:
    report = make()
    report(1)
    report.apply((1,))
    desk.app.conf.task_always_eager = True

    report.delay(1)

    assert runs == [1, 1, 1]
    assert claims(desk, report) is None


def test_in_order_of_publishing_too(desk: Desk, make: Make, runs: Runs) -> None:
    report = make(key="day:{day}", on_contention=Queue(ordered="publish"))

    with lock("day:1", app=desk.app, timeout=0):
        first, again = report.delay(1), report.delay(1)
        assert (again.id, again.is_duplicate) == (first.id, True)

    desk.deliver_all()
    assert runs == [1]
    assert claims(desk, report) is None


def test_what_a_unique_task_costs(
    desk: Desk, make: Make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round trip more where it is published, and two in the worker; others none."""
    asked: list[str] = []
    store = runtime(desk.app).backend
    swap = store.swap

    def counted(name: str, *rest: Any) -> Any:
        asked.append(name)
        return swap(name, *rest)

    monkeypatch.setattr(store, "swap", counted)
    plain, done, start = make(None, name="plain"), make("done"), make("start", name="start")

    counts = []
    for task in (plain, done, start):
        for step in (lambda task=task: task.delay(1), desk.deliver):
            step()
            counts.append(len(asked))
            asked.clear()

    assert counts == [0, 0, 1, 2, 1, 1]


def test_its_message_says_where_the_claim_stands(desk: Desk, make: Make) -> None:
    make(Unique(ttl=600)).delay(1)

    message = desk.take()

    assert message is not None
    header = message.headers[UNIQUE]
    assert (header["until"], header["ttl"]) == ("done", 600)
