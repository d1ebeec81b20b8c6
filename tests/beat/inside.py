"""What happens to beats that have another scheduler inside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kombu.exceptions import OperationalError

from tests.services.beats import Beats, Died


def at(seconds: float) -> datetime:
    """So many seconds after noon; the beats start at three."""
    return datetime(2026, 11, 21, 12, 0, tzinfo=UTC) + timedelta(seconds=seconds)


def dies() -> None:
    raise Died


def refuses() -> None:
    raise OperationalError("the broker is away")


def take_over(of: Beats, number: int) -> None:
    """The beat before dies, and this one leads."""
    of.die(number - 1)
    of.tick(number)
    assert of.leader() == number


def run(of: Beats, until: float, number: int = 0) -> None:
    """One beat leads, and looks every second."""
    while of.now < at(until):
        of.tick(number)
        of.advance(min(1.0, (at(until) - of.now).total_seconds()))
    of.tick(number)
