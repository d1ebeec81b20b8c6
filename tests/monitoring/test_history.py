"""What happened is in the database, whatever database, and can be found by key, task and time."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert

from celery_dlock.core import events
from celery_dlock.core.events import (
    Acquired,
    Contended,
    Dropped,
    Event,
    Lost,
    Parked,
    Released,
    StaleRejected,
    Subject,
)
from celery_dlock.monitoring import history as writing
from celery_dlock.monitoring.history import LONGEST_TEXT, TABLE, create, open_engine, rows
from celery_dlock.monitoring.history_reader import p99
from tests.monitoring.conftest import Open

every_database = pytest.mark.parametrize(
    "url",
    [
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.server("postgresql")),
        pytest.param("mariadb", marks=pytest.mark.server("mariadb")),
    ],
    indirect=True,
)

CHARGE = Subject("id-1", "shop.charge", "order:{order_id}")
REPORT = Subject("id-2", "shop.report", "report")
PAST = datetime(2000, 1, 1, tzinfo=UTC)


def test_a_signal_that_strikes_while_an_event_is_noted_may_note_another(
    history: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, reader = history()
    told = time.time_ns

    def struck() -> int:
        monkeypatch.setattr(time, "time_ns", told)
        sink(Lost(CHARGE, "order:1", "by the handler"))
        return told()

    monkeypatch.setattr(time, "time_ns", struck)
    task = threading.Thread(target=sink, args=[Lost(CHARGE, "order:1", "by the task")], daemon=True)
    task.start()
    task.join(60)

    assert not task.is_alive()
    sink.flush(60)
    reasons = {entry.details["reason"] for entry in reader.of_key("order:1")}
    assert reasons == {"by the task", "by the handler"}


@every_database
def test_events_are_found_by_key_by_task_and_by_time(history: Open) -> None:
    sink, reader = history()
    before = datetime.now(UTC)
    sink(Contended(CHARGE, "order:1", "id-2", 0, 0.0))
    keys = ("order:1", "order:2", "orders")  # of which the last is only read
    sink(Acquired(CHARGE, keys, (7, 8, 0), took=0.5, ttl=30.0, waited=1.5))
    sink(Released(CHARGE, ("order:1", "order:2"), "done", 2.5))
    sink(events.Rescheduled(REPORT, "the store is away", 3.0))
    sink(StaleRejected(REPORT, "order:1", 6))
    sink(events.TickSent(REPORT, "2026-01-01T00:00:00+00:00"))
    sink.flush(60)

    of_key = reader.of_key("order:1")
    assert [(e.event, e.token) for e in of_key] == [
        ("StaleRejected", 6),
        ("Released", None),
        ("Acquired", 7),
        ("Contended", None),
    ]
    assert [e.token for e in reader.of_key("order:2")] == [None, 8]
    acquired = of_key[2]
    assert (acquired.task_id, acquired.task_name, acquired.label) == (
        "id-1",
        "shop.charge",
        "order:{order_id}",
    )
    assert acquired.details["waited"] == 1.5
    assert acquired.details["keys"] == list(keys)
    assert reader.of_key("orders")[0].token is None
    assert before <= acquired.at <= datetime.now(UTC)

    assert reader.of_key("order:1", limit=2) == of_key[:2]
    assert reader.of_key("order:1", before=of_key[1].at) == of_key[2:]

    assert [e.event for e in reader.of_task("id-2")] == ["TickSent", "StaleRejected", "Rescheduled"]
    assert reader.of_task("id-2", limit=1)[0].key is None
    assert len(reader.recent()) == 9
    assert reader.recent(since=of_key[0].at) == reader.of_task("id-2", limit=1)
    assert reader.of_key("nobody") == reader.of_task("nobody") == ()


@every_database
def test_tasks_are_counted_by_name(history: Open) -> None:
    sink, reader = history()
    refused: list[Event] = [
        Contended(CHARGE, "k", None, 0, 0.0),
        Contended(CHARGE, "k", '"attempt":0,', 10, 2.5),
        Parked(CHARGE, "k", refused=True),
        Parked(CHARGE, "k", refused=False),
        events.TimedOut(CHARGE, "k", 1.0),
        events.Skipped(CHARGE, "k", None),
        Dropped(CHARGE, "k", "done"),
        Lost(CHARGE, "k", "gone"),
        StaleRejected(CHARGE, "k", 1),
        events.DeadLettered(CHARGE, "k", "runs lost"),
    ]
    for event in refused:
        sink(event)
    for number in range(1, 101):
        sink(Acquired(CHARGE, ("k", "l"), (), took=number / 100, ttl=30.0 + number))
        sink(Released(CHARGE, ("k", "l"), "done", held=float(number)))
    sink(Acquired(REPORT, ("m",), (1,), took=0.25, ttl=5.0, waited=0.5))
    sink.flush(60)

    tally = reader.by_task(PAST)

    assert tally.since == PAST
    charge, report = tally.tasks
    assert charge.task_name == "shop.charge"
    assert (charge.acquired, charge.at_once, charge.refused) == (100, 100, 2)
    others = (charge.timed_out, charge.skipped, charge.dropped, charge.lost)
    assert (*others, charge.stale, charge.dead_lettered) == (1, 1, 1, 1, 1, 1)
    assert (charge.took, charge.held, charge.ttl) == (0.99, 99.0, 31.0)
    assert (report.acquired, report.at_once, report.took, report.held) == (1, 0, 0.25, None)
    assert reader.by_task(datetime.now(UTC) + timedelta(days=1)).tasks == ()


def test_of_much_the_latest_is_counted(history: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "COUNTED", 3)
    sink, reader = history()
    for _ in range(5):
        sink(Dropped(CHARGE, "k", "done"))
    sink.flush(60)

    tally = reader.by_task(PAST)

    assert tally.tasks[0].dropped == 3
    assert tally.since == reader.of_task("id-1")[2].at


@every_database
@pytest.mark.parametrize(
    "text",
    [
        "\0<script>\0",
        "half \ud83d of one",
        "whole 😀",
        "k" * (LONGEST_TEXT * 2),
        "it's 100 % \\ ok",
    ],
    ids=["nul", "surrogate", "emoji", "long", "quotes"],
)
def test_whatever_somebody_sends_is_kept_and_found(history: Open, text: str) -> None:
    sink, reader = history()
    sink(Contended(Subject(text, text, text), text, text, 0, 0.0))
    sink(Dropped(Subject("next", "next", "next"), "next", "done"))
    sink.flush(60)

    (by_task,) = reader.of_task(text)
    assert reader.of_key(text) == (by_task,)
    assert by_task.details["holder"] == text
    kept = by_task.key
    assert kept is not None
    assert kept == text or "\N{REPLACEMENT CHARACTER}" in kept or "?" in kept or kept[-1] == "…"
    assert len(kept) <= LONGEST_TEXT
    assert len(reader.of_key("next")) == 1


@every_database
def test_several_processes_may_make_the_table_at_once(url: str) -> None:
    count = 6
    together = threading.Barrier(count)
    failed: list[Exception] = []

    def make() -> None:
        engine = open_engine(url)
        try:
            with engine.connect():
                together.wait(60)
            create(engine)
        except Exception as exc:
            failed.append(exc)
        finally:
            engine.dispose()

    threads = [threading.Thread(target=make) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []


@every_database
def test_what_was_written_already_is_there_once(history: Open) -> None:
    sink, reader = history()
    now = time.time_ns() // 1000
    first = [(now + number, number, Dropped(CHARGE, "k", "done")) for number in range(3)]
    sink.write(first, 0)

    sink.write([*first, (now + 9, 9, Dropped(CHARGE, "k", "waiting"))], 0)

    assert len(reader.recent()) == 4
    sink.close()


@every_database
def test_what_is_too_old_is_deleted_a_bounded_number_at_a_time(
    url: str, history: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "OLD_AT_ONCE", 10)
    engine = open_engine(url)
    create(engine)
    too_old = time.time_ns() // 1000 - 3700 * 1_000_000
    fields = {"event": "Dropped", "task_id": "old", "task_name": "", "label": "", "key": "k"}
    with engine.begin() as connection:
        for number in range(35):
            connection.execute(insert(TABLE), list(rows(too_old + number, 1, number, fields)))
        fine = {**fields, "task_id": "young"}
        connection.execute(insert(TABLE), list(rows(too_old + 200 * 1_000_000, 1, 99, fine)))
    engine.dispose()

    sink, reader = history(keep=3600)
    sink(Dropped(CHARGE, "k", "done"))
    sink.flush(60)

    assert reader.of_task("old") == ()
    assert [entry.task_id for entry in reader.of_key("k")] == ["id-1", "young"]


def test_before_anything_is_written_there_is_nothing_to_read(history: Open) -> None:
    _, reader = history()
    assert reader.recent() == reader.of_key("k") == ()
    assert reader.by_task(PAST).tasks == ()


def test_what_99_percent_do_not_exceed() -> None:
    assert p99([]) is None
    assert p99([3.0]) == 3.0
    assert p99([float(number) for number in range(1, 1001)]) == 990.0
