"""The benchmark of beats counts what is lost and doubled, and a shift as neither."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from scripts.benchmarks.beat_counts import Counts, Tick, Window, count, silence
from scripts.benchmarks.beat_table import table
from scripts.benchmarks.beats import Fared

#: Twelve seconds of which the last half does not count, on a clock that is 1000 s ahead.
WINDOW = Window(0.25, 12.25, 1000.0)

#: At every second that is in it; the first one lies before.
STEADY = [float(second) for second in range(13)]

Make = Callable[..., list[Tick]]


def free(*sent: float) -> list[Tick]:
    """Ticks that count from their own now."""
    return [Tick("a", at) for at in sent]


def bound(*due: float) -> list[Tick]:
    """Ticks that say for which instant they were sent, each a little late."""
    return [Tick("a", at + 0.01, datetime.fromtimestamp(at + 1000, UTC)) for at in due]


@pytest.mark.parametrize("ticks", [free, bound])
def test_a_steady_beat_loses_nothing_and_doubles_nothing(ticks: Make) -> None:
    found = count(ticks(*STEADY), 1.0, WINDOW)
    assert (found.lost, found.doubled) == (0, 0)
    assert found.due in (11, 12)


@pytest.mark.parametrize("ticks", [free, bound])
def test_what_is_left_out_is_lost_also_at_the_end(ticks: Make) -> None:
    assert count(ticks(*STEADY[:4], *STEADY[6:]), 1.0, WINDOW).lost == 2
    assert count(ticks(*STEADY[:8]), 1.0, WINDOW).lost == 4


@pytest.mark.parametrize("ticks", [free, bound])
def test_what_runs_twice_is_doubled(ticks: Make) -> None:
    assert count(ticks(*STEADY, 5.0, 5.0, 7.0), 1.0, WINDOW) == Counts(
        count(ticks(*STEADY), 1.0, WINDOW).due, 0, 3
    )


def test_who_counts_from_its_own_now_may_shift() -> None:
    late = [at + 0.7 for at in STEADY[5:12]]
    drifting = [at * 1.02 for at in STEADY]
    for ticks in (free(*STEADY[:5], *late), free(*drifting)):
        found = count(ticks, 1.0, WINDOW)
        assert (found.lost, found.doubled) == (0, 0)


def test_of_two_that_take_no_notice_of_each_other_each_tick_is_doubled() -> None:
    found = count(free(*STEADY, *(at + 0.4 for at in STEADY)), 1.0, WINDOW)
    assert (found.lost, found.doubled) == (0, 12)


def test_a_tick_that_is_caught_up_shortly_before_the_next_is_no_second_one() -> None:
    late = Tick("b", 5.95, datetime.fromtimestamp(1005, UTC))
    assert count([*bound(*STEADY[:5], *STEADY[6:]), late], 1.0, WINDOW) == Counts(11, 0, 0)


def test_silence_may_last_to_the_end() -> None:
    assert silence(free(1.0, 2.0, 5.0, *STEADY[6:]), WINDOW) == (3.0, False)
    assert silence(free(1.0, 2.0), WINDOW) == (10.25, True)


def test_the_table_adds_up_the_times_and_shows_the_range_of_the_silence() -> None:
    out = StringIO()
    once = Fared("ours", Counts(27, 1, 0), 3.25, to_the_end=False, ends=1)
    again = Fared("ours", Counts(26, 2, 3), 15.0, to_the_end=True, ends=2)
    Console(file=out, width=90).print(table("a fault", [[once, again]]))
    row = next(line for line in out.getvalue().splitlines() if "ours" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        *("ours", "53", "3", "3", "3.2 to over 15.0", "3"),
    ]
