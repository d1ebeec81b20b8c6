"""The log at INFO says in one line what became of a delivery, with key, holder and reason."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from celery_dlock.core import event_log, events
from celery_dlock.core.event_log import log
from celery_dlock.core.state import Holder, Mode
from celery_dlock.monitoring.history import rows
from celery_dlock.monitoring.history_reader import HistoryEntry
from celery_dlock.ops.event_text import happened
from tests.monitoring.happenings import one_of_each

A = events.Subject("a", "shop.charge", "order:{order_id}")
BY = "shop.refund[b] on celery@one:12"
ACQUIRED = events.Acquired(A, ("order:42",), (7,), 0.002, 30.0)

REFUSED = "was refused and parked at 'k'"
WOKEN = "from the queue of 'k' because its turn had come"
DUPLICATE = "had a duplicate dropped at 'k', because it was already done"
LIVES = "b, which lives under the unique claim 'charge(42)'"

COURSE: list[tuple[events.Event, str]] = [
    (events.Parked(A, "k", refused=True, holder="b", by=BY), f"{REFUSED}, which was held by {BY}"),
    (
        events.Parked(A, "k", refused=True),
        f"{REFUSED}, which was reserved for a waiting task, or was cooling down",
    ),
    (
        events.Parked(A, "k", refused=True, hold="ann@ops: by hand"),
        f"{REFUSED}, which was on hold, by ann@ops: by hand",
    ),
    (
        events.Parked(A, "k", refused=True, holder="a", by="shop.charge[a] on celery@one:12"),
        f"{REFUSED}: another delivery of it was running",
    ),
    (events.Woken(A, "k", None, "celery"), f"was woken {WOKEN}, and sent to celery"),
    (
        events.Woken(A, "k", None, before=1),
        f"was woken again, after 1 unanswered wake, {WOKEN}",
    ),
    (
        events.Woken(A, "k", None, before=2),
        f"was woken again, after 2 unanswered wakes, {WOKEN}",
    ),
    (events.Woken(A, "k", "revoked"), "was woken from the queue of 'k' to end: revoked"),
    (
        events.Rescheduled(A, f"'k' is held by {BY}", 1.04),
        f"was rescheduled by 1.0 s: 'k' is held by {BY}",
    ),
    (events.Skipped(A, "k", "b", by=BY), f"was skipped: 'k' was held by {BY}"),
    (
        events.Skipped(A, "k", None),
        "was skipped: 'k' was reserved for a waiting task, or was cooling down",
    ),
    (events.Skipped(A, "k", None, "a newer one came"), "was skipped: a newer one came"),
    (events.Dropped(A, "k", "done"), DUPLICATE),
    (
        events.Deduplicated(A, "charge(42)", "b"),
        f"was not published: the call was answered with {LIVES}",
    ),
    (
        events.Deduplicated(A, "charge(42)", "b", published=True),
        f"was found to be a duplicate of {LIVES}: it does not run",
    ),
    (
        events.Lost(A, "k", "replaced by newer", "newer"),
        "lost its lock on 'k' as intended: replaced by newer",
    ),
    (events.Debounced(A, "charge(42)", "b"), "was debounced at 'charge(42)': b has its message"),
    (events.Debounced(A, "charge(42)", "a"), "was debounced at 'charge(42)'"),
    (
        events.Uncertain(A, "k", 14.66),
        "was uncertain of its lock on 'k', which was not renewed in time, for the next 15 s at "
        "most",
    ),
    (events.Confirmed(A, "k"), "was certain of its lock on 'k' again"),
    (events.Revoked(A, "k"), "was revoked while it waited for 'k'"),
    (events.Discarded(A, "k", "ann@desk"), "was discarded at 'k', by ann@desk"),
    (
        events.LeftToOthers(A, "k", "redis://x"),
        "was woken for 'k' and left to the workers at its broker redis://x",
    ),
]
WARNED: list[tuple[events.Event, str]] = [
    (events.Lost(A, "k", "too late"), "lost its lock on 'k': too late"),
    (
        events.Unreserved(A, "k", "m"),
        "no longer has 'k' reserved: it waits for 'm', which is reserved for a task that waits "
        "for 'k'",
    ),
    (events.StaleRejected(A, "k#1", 7), "was refused a late write to 'k#1' with token 7"),
    (events.Dropped(A, "k", "done", repeated=False), f"{DUPLICATE}. As far as can be known it was"),
]


@pytest.mark.parametrize(("event", "line"), [*COURSE, *WARNED])
def test_what_became_of_a_delivery_is_one_line_and_the_history_says_the_same(
    caplog: pytest.LogCaptureFixture, event: events.Event, line: str
) -> None:
    with caplog.at_level(logging.INFO, "celery_dlock"):
        log(event)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Task shop.charge[a] {line}")
    assert record.levelno == (logging.WARNING if (event, line) in WARNED else logging.INFO)
    (row,) = rows(0, 0, 0, events.plain(event))
    entry = HistoryEntry(
        *(datetime.now(UTC), row["event"], row["key"], row["task_id"], row["task_name"]),
        *(row["label"], row["token"], json.loads(row["details"])),
    )
    assert record.getMessage().startswith(f"Task shop.charge[a] {happened(entry)}")


def test_each_event_is_logged_at_its_level(caplog: pytest.LogCaptureFixture) -> None:
    happened = one_of_each(A)
    with caplog.at_level(logging.DEBUG, "celery_dlock"):
        for event in happened:
            log(event)
    for event, record in zip(happened, caplog.records, strict=True):
        assert record.levelno == event.level, event
        assert "shop.charge" in record.getMessage()


def test_a_place_taken_by_a_publisher_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "celery_dlock"):
        log(events.Parked(A, "k", refused=False))
    assert caplog.records == []


def test_code_outside_tasks_and_a_beat_are_no_tasks(caplog: pytest.LogCaptureFixture) -> None:
    log(events.Lost(events.Subject("lock()@host/12/ab", "lock()", "lock()"), "k", "too late"))
    log(events.Lost(events.Subject("host:12", events.LEAD, events.LEAD), "k", "too late"))
    assert [record.getMessage() for record in caplog.records] == [
        "lock()@host/12/ab lost its lock on 'k': too late",
        "celery beat[host:12] lost its lock on 'k': too late",
    ]


def test_missed_ticks_are_an_entrys_and_end_before_the_one_that_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = events.Subject("id of the tick", "shop.report", "nightly")
    log(events.TicksMissed(entry, "03:00", "05:00"))
    (record,) = caplog.records
    assert record.getMessage() == (
        "Entry 'nightly' (shop.report) missed the ticks from 03:00 on and before 05:00"
    )


def test_a_holder_is_known_by_its_task_and_its_process() -> None:
    held = Holder("b:0:0", "n", Mode.EXCLUSIVE, 1, 0, 1, 0, 1, "shop.refund", "celery@one:12")
    assert held.who == BY
    assert replace(held, name="").who == "task b"
    block = replace(held, task="lock()@host/12/ab:0:0", name="lock()", where="host:12")
    assert block.who == "lock() on host:12"


def test_a_record_is_for_people_and_for_programs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "celery_dlock"):
        log(ACQUIRED)
    (record,) = caplog.records
    assert record.getMessage() == (
        "Task shop.charge[a] Acquired: label='order:{order_id}', keys=('order:42',), tokens=(7,), "
        "took=0.002, ttl=30.0, waited=0.0, since_woken=None"
    )
    assert vars(record)["dlock"] == {
        "event": "Acquired",
        "task_id": "a",
        "task_name": "shop.charge",
        "label": "order:{order_id}",
        "keys": ("order:42",),
        "tokens": (7,),
        "took": 0.002,
        "ttl": 30.0,
        "waited": 0.0,
        "since_woken": None,
    }


def test_nothing_is_made_of_an_event_that_nobody_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_log, "plain", lambda event: pytest.fail("it is not wanted"))
    with caplog.at_level(logging.WARNING, "celery_dlock"):
        log(ACQUIRED)
    assert caplog.records == []
