"""Three beats, and whatever can happen to them at any point: each tick is sent, and once.

A tick is missed, or goes out twice under the same id, only where a beat has said so.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from celery.schedules import crontab
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.exceptions import OperationalError

from celery_dlock.beat.ticks import next_due
from celery_dlock.errors import BackendUnavailable
from tests.services.beats import START, Beats, Died, beats

SCHEDULE = {"often": 7.0, "now and then": 60.0, "minutely": crontab()}

POINTS = [
    *(f"{when} {what}" for when in ("before", "after") for what in ("enter", "note", "notes")),
    "before it is published",
    "after it was published",
]


def fault(of: Beats, kind: str, point: str) -> None:
    def strike() -> None:
        match kind:
            case "dies":
                raise Died
            case "is overtaken":  # it was asleep for longer than its lease
                here = of.runs
                assert here is not None
                of.depose(here)
                of.tick((here + 1) % 3)
            case _ if "publish" in point:
                raise OperationalError("the broker is away")
            case _:
                raise BackendUnavailable("the store is away")

    of.faults[point] = strike


ACTIONS = st.one_of(
    st.tuples(st.just("tick"), st.integers(0, 2)),
    st.tuples(st.just("advance"), st.floats(0.1, 90)),
    st.tuples(st.just("step back"), st.floats(0.1, 90)),
    st.tuples(st.just("die"), st.integers(0, 2)),
    st.tuples(st.just("depose"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["dies", "is overtaken", "fails"]), st.sampled_from(POINTS)),
)


def play(of: Beats, actions: list[tuple[str, object]]) -> datetime:
    """Do it all, and let every beat find its way at the end; how far the clock ever was."""
    furthest = of.now
    for action in actions:
        match action:
            case ("tick", int(number)):
                of.tick(number)
            case ("advance", float(seconds)):
                of.advance(seconds)
            case ("step back", float(seconds)):
                of.advance(-seconds)
            case ("die", int(number)):
                of.die(number)
            case ("depose", int(number)):
                of.depose(number)
            case (str(kind), str(point)):
                fault(of, kind, point)
        furthest = max(furthest, of.now)
    of.faults.clear()
    of.now = (furthest + timedelta(seconds=2)).replace(microsecond=200_000)
    for _ in range(2):
        of.tick_all()
    return of.now


def every_due(entry: str, until: datetime, of: Beats) -> list[datetime]:
    schedule = of.app.conf.beat_schedule[entry]["schedule"]
    step = 60 if isinstance(schedule, crontab) else int(schedule)
    first = datetime.fromtimestamp(int(START.timestamp()) // step * step, UTC)
    found = []
    while (first := first + timedelta(seconds=step)) <= until:
        found.append(first)
    return found


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(st.lists(ACTIONS, max_size=40), st.sampled_from(["once", "none"]))
def test_every_tick_is_sent_once_or_said_to_be_missed(
    actions: list[tuple[str, object]], catch_up: str
) -> None:
    config = {"dlock_beat_catch_up": catch_up}
    with tempfile.TemporaryDirectory() as folder, beats(Path(folder), SCHEDULE, **config) as of:
        of.tick(0)

        now = play(of, actions)

        for entry in SCHEDULE:
            missed = [
                (datetime.fromisoformat(first), datetime.fromisoformat(until))
                for name, first, until in of.missed()
                if name == entry
            ]
            unsent = set(every_due(entry, now, of)) - set(of.dues(entry))
            assert all(any(a <= due < b for a, b in missed) for due in unsent)
            assert set(of.dues(entry)) <= set(every_due(entry, now, of))
        twice = Counter((sent.entry, sent.due.isoformat()) for sent in of.sent)
        said = of.repeated()
        assert all(count - 1 <= said[tick] for tick, count in twice.items())
        assert len({sent.task_id for sent in of.sent}) == len(twice)


def test_what_is_due_is_recomputed_without_the_code_under_test() -> None:
    with tempfile.TemporaryDirectory() as folder, beats(Path(folder), SCHEDULE) as of:
        until = START + timedelta(minutes=3)

        assert every_due("minutely", until, of)[0] == next_due(crontab(app=of.app), START)
        assert len(every_due("often", until, of)) == 26
