"""Unique tasks: what is the same, and what a duplicate call gets."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from celery import group

from celery_dlock import (
    ConfigurationError,
    DuplicateTask,
    Queue,
    Unique,
    lock,
)
from celery_dlock.core.events import Deduplicated
from celery_dlock.messages.unique import UNIQUE
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.unique import UNTIL, Make, Runs, claims

pytestmark = pytest.mark.stores


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

    with pytest.raises(DuplicateTask, match="report was not published") as caught:
        report.delay(1)

    assert (caught.value.task, caught.value.task_id) == ("report", first.id)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert desk.size() == 1


@pytest.mark.every_store
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

    for args, kwargs in [((), {"day": 1}), ((1, 1), {}), ((1,), {"depth": 1})]:
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
        (lambda: Unique(on_duplicate="merge"), "on_duplicate="),  # type: ignore[arg-type]
        (lambda: Unique(ttl=0), "ttl must be"),
        (lambda: Unique(period=-1), "period must be"),
        (lambda: Unique(by="{nobody}"), "no parameter 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused_as_it_is_defined(make: Make, wrong: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make(wrong() if callable(wrong) else wrong)


@UNTIL
def test_a_body_that_calls_its_next_run_is_told_once_why_there_is_none(
    desk: Desk,
    make: Make,
    runs: Runs,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    until: str,
) -> None:
    monkeypatch.setattr("celery_dlock.publishing.unique._calls_itself", set())

    def call_again(task: Any) -> None:
        if len(runs) < 3:
            task.delay(1)
            task.delay(1)

    make(until, call_again).delay(1)

    desk.deliver_all()

    assert runs == ([1] if until == "done" else [1, 1, 1])
    said = [r.getMessage() for r in caplog.records if r.name == "celery_dlock"]
    assert len(said) == (until == "done")
    assert all("has called itself" in text and 'unique="start"' in text for text in said)


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


@UNTIL
def test_and_its_period_begins_there(desk: Desk, make: Make, runs: Runs, until: Any) -> None:
    make(Unique(until, period=3600))
    first, second = (desk.app.send_task("report", (1,)) for _ in range(2))

    desk.deliver_all()

    assert runs == [1]
    assert second.get()["holder"] == first.id


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
