"""What a wrong configuration is told: briefly, what was wrong, and nothing that is secret."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_dlock import ConfigurationError, Limit, Queue, Replace, Reschedule, Wait
from celery_dlock.core.access import Access
from celery_dlock.core.checks import LONGEST_DURATION, did_you_mean, duration, quoted


class Mute:
    def __repr__(self) -> str:
        raise OSError


def test_an_address_is_quoted_by_its_scheme() -> None:
    assert quoted("redis://user:secret@host/0") == "'redis://…"


def test_what_cannot_say_what_it_is_is_quoted_by_its_type() -> None:
    assert quoted(Mute()) == "a Mute"


def test_what_is_long_is_quoted_as_far_as_a_line_goes() -> None:
    assert quoted("x" * 118) == repr("x" * 118)
    assert quoted("x" * 119) == f"'{'x' * 119}…"


def test_a_name_is_found_however_it_is_written_and_else_all_are_told() -> None:
    assert did_you_mean("QEUE", ["queue", "Reschedule"]) == "did you mean 'queue'?"
    assert did_you_mean("x", ["wait", "Fail"]) == "known: Fail, wait"
    assert did_you_mean(7, []) == "known: none"


def test_the_longest_duration_is_one() -> None:
    assert duration("ttl", LONGEST_DURATION) == LONGEST_DURATION


def test_what_is_no_duration_and_what_is_no_limit_is_quoted() -> None:
    with pytest.raises(ConfigurationError, match=r"ttl must be a number of seconds, got 'soon'$"):
        duration("ttl", "soon")
    with pytest.raises(ConfigurationError, match=r"got 0$"):
        Access.of(Limit("k", 0))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("1h", 3600), ("1h30m", 5400), ("30d", 2_592_000), ("90", 90), (timedelta(minutes=5), 300)],
)
def test_who_writes_a_time_in_another_way_is_told_the_seconds(value: Any, seconds: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"got .*: write {seconds}$"):
        duration("max_wait", value)


def test_a_word_that_is_none_is_quoted() -> None:
    with pytest.raises(ConfigurationError, match=r"^overflow is one of fail, .*, got 'drop'$"):
        Queue(overflow="drop")  # type: ignore[arg-type]


def test_no_wait_at_all_and_wait_without_end_may_be_meant() -> None:
    assert Reschedule(max_attempts=0, max_wait=0).max_wait == 0
    assert Reschedule(max_wait=None).max_attempts is None
    assert Replace(max_wait=None).queueing().max_wait is None
    assert Wait(timeout=0).timeout == 0
