"""A beat that leads, step by step: what it sends, what it leaves out, and what it writes down."""

from __future__ import annotations

import json
import shelve
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery.schedules import crontab

from celery_dlock.beat.leader import key_of
from celery_dlock.beat.tick_ledger import TickRecord
from celery_dlock.core.events import Acquired, Lost, Released
from celery_dlock.errors import BackendUnavailable
from tests.beat.inside import at as due
from tests.beat.inside import dies
from tests.services.beats import Beats
from tests.services.schedule_files import written_at_once
from tests.services.until import until
from tests.unit.conftest import Make

TEN = {"ten": 10.0}


@pytest.fixture
def three(make: Make) -> Iterator[Beats]:
    """Three beats of one entry, of which the first leads."""
    with make(TEN) as of:
        of.tick_all()
        yield of


def away() -> None:
    raise BackendUnavailable("the store is away")


def records(of: Beats) -> dict[str, dict[str, str]]:
    notes = of.backend.notes(key_of(of.app))
    return {name: json.loads(note) for name, note in notes.items()}


def test_before_it_is_sent_it_is_claimed_and_after_it_is_noted(three: Beats) -> None:
    seen = []
    three.faults["before it is published"] = lambda: seen.append(records(three)["ten"])
    three.advance(7)

    three.tick(0)

    assert seen == [
        {"sent": due(0).isoformat(), "claimed": due(10).isoformat(), "next": due(10).isoformat()}
    ]
    assert records(three) == {"ten": {"sent": due(10).isoformat(), "next": due(20).isoformat()}}


def test_a_tick_costs_two_questions_to_the_store(make: Make) -> None:
    with make({f"entry {number}": 10.0 for number in range(50)}) as of:
        of.tick(0)
        of.advance(7)
        of.asked.clear()
        of.tick(0)

        assert len(of.sent) == 50
        del of.asked["notes"]  # whether it is to hand over, once a second
        assert of.asked == {"note": 100}


def test_taking_the_lead_costs_four(make: Make) -> None:
    with make({f"entry {number}": 10.0 for number in range(50)}) as of:
        of.beats[0]._leader.campaign()
        of.beats[0]._leader.retire()
        of.asked.clear()
        of.beats[0].tick()

        assert of.asked == {"enter": 1, "note": 2, "notes": 1}


def test_who_dies_between_claim_and_send_loses_no_tick(three: Beats) -> None:
    three.faults["before it is published"] = dies
    three.advance(7)
    three.tick(0)
    assert three.sent == []

    three.tick(1)

    assert three.dues("ten") == [due(10)]
    assert three.repeated() == {("ten", due(10).isoformat()): 1}


def test_who_dies_after_sending_is_repeated_under_the_same_id(three: Beats) -> None:
    three.faults["after it was published"] = dies
    three.advance(7)
    three.tick(0)

    three.tick(1)
    three.advance(10)
    three.tick(1)

    assert three.dues("ten") == [due(10), due(10), due(20)]
    assert three.sent[0].task_id == three.sent[1].task_id != three.sent[2].task_id
    assert three.repeated() == {("ten", due(10).isoformat()): 1}


def test_what_was_not_heard_to_be_sent_is_said_with_the_next_claim(make: Make) -> None:
    with make({"ten": 10.0, "minute": 60.0}) as of:

        def then_deaf() -> None:
            if of.sent[-1].entry == "ten":
                of.faults["after it was published"] = then_deaf
            else:
                of.faults["before note"] = away

        of.tick(0)
        of.advance(57)
        of.faults["after it was published"] = then_deaf
        of.tick(0)
        of.faults["before it is published"] = dies
        of.advance(10)
        of.tick(0)

        of.tick(1)

        assert sum(of.repeated().values()) == 1
        assert of.repeated() == {("ten", due(70).isoformat()): 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_is_away_for_a_moment_costs_a_moment(three: Beats, when: str) -> None:
    three.faults[f"{when} note"] = away
    three.advance(7)
    three.tick(0)
    assert three.sent == []

    three.tick(0)

    assert [(sent.beat, sent.due) for sent in three.sent] == [(0, due(10))]
    assert three.leader() == 0


@pytest.mark.parametrize("point", ["before enter", "after enter", "before note", "before notes"])
def test_a_store_that_is_away_when_the_lead_is_taken_leaves_it_to_be_taken(
    make: Make, point: str
) -> None:
    with make(TEN) as of:
        of.faults[point] = away
        of.tick(0)

        of.tick(1)

        assert of.leader() == 1


@pytest.mark.parametrize(
    ("catch_up", "sent", "until"), [("once", [due(30)], due(30)), ("none", [], due(40))]
)
def test_what_was_missed_while_nobody_led(
    make: Make, catch_up: str, sent: list[datetime], until: datetime
) -> None:
    with make(TEN, dlock_beat_catch_up=catch_up) as of:
        of.tick(0)
        of.die(0)
        of.advance(30)

        of.tick(1)
        assert of.dues("ten") == sent
        assert of.missed() == [("ten", due(10).isoformat(), until.isoformat())]

        of.advance(10)
        of.tick(1)
        assert of.dues("ten") == [*sent, due(40)]


def test_a_schedule_that_is_changed_has_nothing_to_make_up_for(make: Make) -> None:
    with make({"rare": 3600.0}) as of:
        of.tick(0)
        of.advance(600)
        of.die(0)
        of.app.conf.beat_schedule["rare"]["schedule"] = 10.0
        of.tick(1)
        of.advance(10)
        of.tick(1)

        assert of.dues("rare") == [due(600), due(610)]


def test_an_entry_that_could_not_be_noted_is_noted_later(three: Beats) -> None:
    inside = three.beats[0]._scheduler
    assert inside is not None
    inside.schedule["new"] = inside.Entry(
        "new", task="new", schedule=10.0, app=three.app, last_run_at=three.now
    )
    three.faults["before note"] = away
    three.tick(0)
    assert set(records(three)) == {"ten"}

    three.tick(0)

    assert set(records(three)) == {"ten", "new"}


def test_an_entry_that_was_never_sent_is_not_forgotten(make: Make) -> None:
    with make({"daily": crontab(minute="1", hour="12")}) as of:
        of.tick(0)
        of.die(0)
        of.advance(120)

        of.tick(1)

        assert of.dues("daily") == [due(60)]


def test_a_clock_that_goes_back_repeats_nothing(three: Beats) -> None:
    three.advance(30)
    three.tick(0)
    three.advance(-25)
    three.tick(0)
    three.die(0)
    three.tick(1)
    assert three.dues("ten") == [due(30)]

    three.advance(32)
    three.tick(1)

    assert three.dues("ten") == [due(30), due(40)]


def test_each_lead_begins_and_ends_once(three: Beats) -> None:
    three.depose(0)
    three.tick(1)
    three.beats[1].close()
    three.advance(7)
    three.tick(0)
    three.tick(2)
    three.faults["before leave"] = away
    three.beats[2].close()
    until("it is said again", lambda: three.leader() is None)

    first, second, third = (beat._leader.who for beat in three.beats)
    for kind, who in (
        (Acquired, [first, second, third]),
        (Lost, [first, third]),
        (Released, [second]),
    ):
        assert [event.subject.task_id for _, event in three.told(kind)] == who


def test_what_is_known_of_entries_that_are_gone_is_forgotten_after_a_day(make: Make) -> None:
    with make({"ten": 10.0, "gone": 10.0}) as of:
        of.tick(0)
        of.die(0)
        del of.app.conf.beat_schedule["gone"]
        of.tick(1)
        assert set(records(of)) == {"ten", "gone"}

        of.die(1)
        of.advance(24 * 3600 + 20)
        of.tick(2)

        assert set(records(of)) == {"ten"}


@pytest.mark.parametrize("note", [b"not JSON", b"[]", b'{"sent": 5}', b"{}"])
def test_a_record_that_cannot_be_read_stops_nobody(three: Beats, note: bytes) -> None:
    leader = three.beats[0]._leader
    assert leader.lease is not None
    three.backend.note(leader.key, leader.lease.fencing_token, {"ten": note})
    three.die(0)
    three.advance(10)

    three.tick(1)
    three.advance(10)
    three.tick(1)

    assert three.leader() == 1
    assert three.dues("ten") == [due(20)]


def test_a_record_of_a_later_version_is_read() -> None:
    note = {"sent": due(0).isoformat(), "more": [1]}

    assert TickRecord.decode(json.dumps(note).encode()) == TickRecord(due(0))


def test_whether_to_step_down_may_stay_without_an_answer(three: Beats) -> None:
    three.faults["before notes"] = away
    three.advance(7)

    three.tick(0)

    assert three.dues("ten") == [due(10)]


@pytest.mark.parametrize("start", [datetime(2026, 3, 28, 23), datetime(2026, 10, 24, 21)])
def test_an_interval_does_not_mind_a_change_of_clocks(make: Make, start: datetime) -> None:
    # Celery before 5.7 took it for an hour more, or was due again and again
    with make({"two hours": 7200.0}, timezone="Europe/Berlin") as of:
        of.now = start.replace(tzinfo=UTC)
        local = of.app.timezone
        of.app.now = lambda: of.now.astimezone(local)
        for _ in range(12):
            of.tick(0)
            of.advance(1800)

        dues = of.dues("two hours")
        assert [due.hour % 2 for due in dues] == [0, 0, 0]
        assert dues == [dues[0] + timedelta(hours=2 * n) for n in range(3)]


@pytest.fixture
def on_file(make: Make, tmp_path: Path) -> Iterator[Beats]:
    """Three beats with a schedule file each, of a kind that is written at once everywhere."""
    written_at_once()
    with make(TEN, dlock_beat_scheduler="celery.beat:PersistentScheduler") as of:
        for number, beat in enumerate(of.beats):
            beat._options["schedule_filename"] = str(tmp_path / f"schedule-{number}")
        of.tick_all()
        yield of


def last_run(folder: Path, number: int) -> datetime:
    """What is on file of the entry."""
    with shelve.open(str(folder / f"schedule-{number}"), flag="r") as stored:
        last: datetime = stored["entries"]["ten"].last_run_at
        return last


def test_a_leader_that_was_deposed_writes_no_schedule(on_file: Beats, tmp_path: Path) -> None:
    on_file.advance(7)
    on_file.tick(0)
    before = last_run(tmp_path, 0)
    on_file.advance(10)
    on_file.tick(0)  # Celery writes every three minutes only
    on_file.depose(0)
    on_file.tick(1)
    on_file.advance(10)

    on_file.tick(0)
    on_file.tick(1)

    assert [sent.beat for sent in on_file.sent] == [0, 0, 1]
    assert on_file.dues("ten") == [due(10), due(20), due(30)]
    assert last_run(tmp_path, 0) == before == due(10)


def test_a_clean_stop_writes_the_schedule(on_file: Beats, tmp_path: Path) -> None:
    on_file.advance(7)
    on_file.tick(0)

    on_file.beats[0].close()

    assert last_run(tmp_path, 0) == due(10)
