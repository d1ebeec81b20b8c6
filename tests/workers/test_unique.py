"""Unique tasks: what is the same, and what a duplicate call gets."""

from __future__ import annotations

from typing import Any
from unittest.mock import call

import pytest
from celery import chain, group

from celery_dlock import ConfigurationError, Debounce, Ordered, Unique, lock
from celery_dlock.core.events import Deduplicated
from tests.services.desk import Desk, open_desk
from tests.services.unique import UNTIL, Make, claims, maker

pytestmark = pytest.mark.stores


# What a duplicate call gets.


@UNTIL
def test_while_one_lives_no_other_is_published(desk: Desk, make: Make, until: str) -> None:
    report = make(until)

    first, *more = [report.delay(1) for _ in range(5)]

    assert desk.size() == 1
    assert {result.id for result in more} == {first.id}
    assert [first.is_duplicate, *(result.is_duplicate for result in more)] == [False] + [True] * 4
    assert report.lock_definition.unique is not None
    told = [(report.lock_definition.unique.name((1,), {}), first.id)] * 4
    assert [(event.claim, event.living) for event in desk.happened(Deduplicated)] == told
    desk.deliver_all()
    assert desk.ran == [1]
    assert more[0].get() == "1"


@pytest.mark.every_store
@UNTIL
def test_when_it_is_done_the_next_call_is_a_new_one(desk: Desk, make: Make, until: str) -> None:
    report = make(until)
    first = report.delay(1)
    desk.deliver()

    second = report.delay(1)

    assert (second.id != first.id, second.is_duplicate) == (True, False)
    desk.deliver_all()
    assert desk.ran == [1, 1]
    assert claims(desk, report) is None


# What is the same.


#: Calls with what counts of them, and whether the second is a duplicate of the first.
CALLS = [
    (None, call(1), call(2), False),
    (None, call(1), call(1, 2), False),
    (None, call(1), call(1, depth=3), False),
    (None, call(1), call(day=1), True),
    (None, call(1), call(1, 1), True),
    (None, call(1), call(1, depth=1), True),
    (None, call({"é": {"a": 1, "b": "č"}}), call({"é": {"b": "č", "a": 1}}), True),
    (None, call({"é": {"a": 1, "b": "č"}}), call({"é": {"b": "c", "a": 1}}), False),
    ("{day}", call(1, 1), call(1, 2), True),
    ("{day}", call(1, 1), call(2, 1), False),
    ("{depth}", call("a"), call("b", 1), True),
    ("any", call(1), call(2), True),
    (lambda day, depth: f"day {day}", call(1, 1), call(1, 2), True),
]


def test_what_counts_of_two_calls_says_whether_they_are_the_same(desk: Desk, make: Make) -> None:
    for number, (by, first, second, same) in enumerate(CALLS):
        report = make(Unique(by=by), name=f"report {number}")
        assert not report.apply_async(first.args, first.kwargs).is_duplicate
        assert report.apply_async(second.args, second.kwargs).is_duplicate is same, second


def test_an_argument_without_a_text_is_refused(desk: Desk, make: Make) -> None:
    report = make(serializer="pickle")

    with pytest.raises(ConfigurationError, match=r"task report is unique.* say by="):
        report.delay(object())

    assert desk.size() == 0


def test_tasks_that_share_a_lock_are_not_each_others_duplicates(desk: Desk, make: Make) -> None:
    charge, refund = (make(name=name, key="order:{day}") for name in ("charge", "refund"))

    assert not charge.delay(1).is_duplicate
    assert not refund.delay(1).is_duplicate


TWO_KEYS = ["a:{day}", "b:{day}"]


@pytest.mark.parametrize(
    ("unique", "key", "says"),
    [
        ("end", None, "until="),
        (7, None, "unique= takes"),
        ({"until": "done"}, None, "unique= takes"),
        (lambda: Unique(ttl=0), None, "ttl must be"),
        (lambda: Unique(period=-1), None, "period must be"),
        (lambda: Unique(by="{nobody}"), None, "no parameter 'nobody'"),
        (lambda: Debounce(0, 5), "day:{day}", "delay must be"),
        (lambda: Debounce(5, 4), "day:{day}", "max_delay=4 of a debounced task is shorter"),
        (Debounce(5, 6), None, "all calls lock the task's name: say by="),
        (Debounce(5, 6), TWO_KEYS, "only if the task locks one key"),
        (lambda: Debounce(1, 2, by="{nobody}"), "day:{day}", "no parameter 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused_as_it_is_defined(unique: Any, key: Any, says: str) -> None:
    with open_desk() as desk, pytest.raises(ConfigurationError, match=says):
        maker(desk)(unique() if callable(unique) else unique, key=key)


@UNTIL
def test_a_body_that_calls_its_next_run_is_told_once_why_there_is_none(
    desk: Desk, make: Make, caplog: pytest.LogCaptureFixture, until: str
) -> None:
    desk.patch.setattr("celery_dlock.publishing.call._calls_itself", set())

    def call_again(task: Any) -> None:
        if len(desk.ran) < 3:
            task.delay(1)
            task.delay(1)

    make(until, call_again).delay(1)

    desk.deliver_all()

    assert desk.ran == ([1] if until == "done" else [1, 1, 1])
    said = [r.getMessage() for r in caplog.records if r.name == "celery_dlock"]
    assert len(said) == (until == "done")
    assert all("has called itself" in text and 'unique="start"' in text for text in said)


# Calls that somebody depends on.


def test_a_duplicate_with_its_own_id_is_skipped(desk: Desk, make: Make) -> None:
    report = make()
    first = report.delay(1)

    mine = report.apply_async((1,), task_id="mine")

    assert (mine.id, mine.is_duplicate, desk.size()) == ("mine", True, 2)
    desk.deliver_all()
    assert desk.ran == [1]
    assert mine.get()["skipped"] is True
    assert mine.get()["holder"] == first.id
    assert claims(desk, report) is None


@pytest.mark.parametrize("how", [{"link": []}, {"link": "tell"}, {"link_error": "tell"}], ids=str)
def test_so_is_one_with_a_link(desk: Desk, make: Make, how: dict[str, Any]) -> None:
    @desk.app.task(name="tell")
    def tell(result: Any) -> None:
        pytest.fail("nothing was done")

    report = make()
    first = report.delay(1)
    links = {name: tell.s() if link else link for name, link in how.items()}

    second = report.apply_async((1,), **links)

    assert (second.id == first.id) is not any(links.values())
    desk.deliver_all()
    assert desk.ran == [1]
    assert second.get() == "1" if second.id == first.id else second.get()["holder"] == first.id


def test_and_a_member_of_a_chord_whose_body_runs(desk: Desk, make: Make) -> None:
    desk.app.conf.result_backend = "cache+memory://"
    totals: list[Any] = []

    @desk.app.task(name="total")
    def total(results: list[Any]) -> None:
        totals.append(len(results))

    report = make()

    group(report.s(1), report.s(1), report.s(2)).apply_async(link=None)
    (group(report.s(3), report.s(3)) | total.s()).apply_async()

    desk.deliver_all()
    assert sorted(desk.ran) == [1, 2, 3]
    assert totals == [2]


# Messages whose claim is another matter.


def test_a_task_sent_by_its_name_takes_its_claim_in_the_worker(desk: Desk, make: Make) -> None:
    report = make("done", lambda task: claims(desk, task).task_id == task.request.id)  # type: ignore[union-attr]
    sent = desk.app.send_task("report", (1,))

    desk.deliver()

    assert sent.get() == "True"
    assert claims(desk, report) is None


@UNTIL
def test_and_its_period_begins_there(desk: Desk, make: Make, until: Any) -> None:
    make(Unique(until, period=3600))
    first, second = (desk.app.send_task("report", (1,)) for _ in range(2))

    desk.deliver_all()

    assert desk.ran == [1]
    assert second.get()["holder"] == first.id


def test_a_lost_messages_claim_gives_way_to_one_that_is_here(desk: Desk, make: Make) -> None:
    report = make()
    report.delay(1)
    desk.receive()  # and lose
    sent = desk.app.send_task("report", (1,))

    desk.deliver()

    assert (sent.get(), desk.ran) == ("1", [1])


def test_the_claim_that_the_message_names_ends_whatever_the_worker_thinks(
    desk: Desk, make: Make
) -> None:
    report = make()
    report.delay(1)
    other = make(None, name="not unique").lock_definition
    with desk.patch.context() as patch:
        patch.setattr(desk.app.tasks["report"].__class__, "lock_definition", other)

        desk.deliver()

    assert desk.ran == [1]
    assert claims(desk, report) is None


# Where nothing is asked.


def test_what_runs_eagerly_or_is_called_takes_no_claim(desk: Desk, make: Make) -> None:
    report = make()
    report(1)
    report.apply((1,))
    desk.app.conf.task_always_eager = True

    report.delay(1)

    assert desk.ran == [1, 1, 1]
    assert claims(desk, report) is None


def test_in_order_of_publishing_too(desk: Desk, make: Make) -> None:
    report = make(key="day:{day}", on_contention=Ordered())

    with lock("day:1", app=desk.app, timeout=0):
        first, again = report.delay(1), report.delay(1)
        assert (again.id, again.is_duplicate) == (first.id, True)

    desk.deliver_all()
    assert desk.ran == [1]
    assert claims(desk, report) is None


def test_what_a_unique_task_costs(desk: Desk, make: Make) -> None:
    """One round trip more where it is published, and two in the worker; others none."""
    asked: list[str] = []
    store = desk.store
    swap = store.swap

    def counted(name: str, *rest: Any) -> Any:
        asked.append(name)
        return swap(name, *rest)

    desk.patch.setattr(store, "swap", counted)
    plain, done, start = make(None, name="plain"), make("done"), make("start", name="start")

    counts = []
    for task in (plain, done, start):
        for step in (lambda task=task: task.delay(1), desk.deliver):
            step()
            counts.append(len(asked))
            asked.clear()

    assert counts == [0, 0, 1, 2, 1, 1]


def test_what_a_duplicate_costs(desk: Desk, make: Make) -> None:
    """One question where the broker has the message, also as it runs; the lock store is looked at
    where it waits there, or had died with its worker.
    """
    asked: list[str] = []

    def count(method: str) -> None:
        real = getattr(desk.store, method)

        def counted(*given: Any, **options: Any) -> Any:
            asked.append(method)
            return real(*given, **options)

        desk.patch.setattr(desk.store, method, counted)

    def duplicates(task: Any) -> list[str]:
        asked.clear()
        for _ in range(2):
            assert task.delay(1).is_duplicate
        return list(asked)

    for method in ("swap", "look", "message"):
        count(method)
    late = make("done", duplicates, key="day:{day}", acks_late=True)
    early = make("done", duplicates, name="early", acks_late=False)
    waits = make("done", name="waits", key="day:{day}", on_contention="queue")
    first, second, third = late.delay(1), early.delay(1), waits.delay(1)

    assert duplicates(late) == ["swap"] * 2
    desk.deliver()
    desk.deliver()
    with lock("day:1", app=desk.app, timeout=0):
        desk.deliver()
        assert duplicates(waits) == ["swap", "look"] * 2
    desk.deliver_all()

    assert third.get() == "1"
    assert first.get() == str(["swap"] * 2)
    assert second.get() == str(["swap", "look"] * 2)


def test_which_results_say_whether_a_call_was_a_duplicate(desk: Desk, make: Make) -> None:
    report = make("done")

    first, signed = report.delay(1), report.s(1).apply_async()
    others = [
        desk.app.send_task("report", (1,)),
        chain(report.si(2), report.si(3)).apply_async(),
        group(report.si(4)).apply_async(),
    ]

    assert (first.is_duplicate, signed.is_duplicate) == (False, True)
    assert [hasattr(result, "is_duplicate") for result in others] == [False] * 3
    assert not hasattr(desk.app.AsyncResult(first.id), "is_duplicate")
    desk.app.conf.task_always_eager = True
    assert report.delay(1).is_duplicate is False
