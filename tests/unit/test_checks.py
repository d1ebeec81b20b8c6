"""What a wrong configuration is told: briefly, what was wrong, and nothing that is secret."""

from __future__ import annotations

import pytest

from celery_dlock import ConfigurationError, Limit, Replace, Reschedule, Wait
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
    with pytest.raises(ConfigurationError, match=r"ttl must be .* years, got 'soon'$"):
        duration("ttl", "soon")
    with pytest.raises(ConfigurationError, match=r"got 0$"):
        Access.of(Limit("k", 0))


def test_no_wait_at_all_and_wait_without_end_may_be_meant() -> None:
    assert Reschedule(max_attempts=0, max_wait=0).max_wait == 0
    assert Reschedule(max_wait=None).max_attempts is None
    assert Replace(max_wait=None).queueing().max_wait is None
    assert Wait(timeout=0).timeout == 0
