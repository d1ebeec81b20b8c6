"""The schedules on paper with which the benchmarks compare."""

from __future__ import annotations

import pytest

from scripts.benchmarks.ideal import one_at_a_time, rate_by_turns, rate_in_order
from scripts.benchmarks.notes import Span


@pytest.mark.parametrize(("keys", "rate"), [("abcd", 2.0), ("aabb", 2.0), ("aaab", 4 / 3)])
def test_a_free_slot_takes_the_first_whose_key_is_free(keys: str, rate: float) -> None:
    assert rate_in_order(keys, 2, 1.0) == rate


@pytest.mark.parametrize("at_publish", [False, True])
def test_all_run_once_and_one_at_a_time_of_a_key(at_publish: bool) -> None:
    assert rate_by_turns("abcd", 2, 1.0, 8, at_publish=at_publish) == 2.0
    assert rate_by_turns("aaaa", 2, 1.0, 8, at_publish=at_publish) == 1.0


def test_what_is_parked_as_it_is_published_leaves_the_hot_key_to_the_end() -> None:
    keys = "".join(f"a{other}" for other in "bcdefghijk" * 2)

    def rate(*, at_publish: bool) -> float:
        return rate_by_turns(keys, 2, 1.0, 8, at_publish=at_publish)

    assert rate(at_publish=False) == 2.0
    assert rate(at_publish=True) < 1.5


def test_the_next_of_a_key_waits_for_the_end_of_the_one_before() -> None:
    plain = [Span(0.0, 1.0, 3.0, "a"), Span(0.5, 1.0, 3.0, "a"), Span(0.5, 1.0, 2.0, "b")]

    assert one_at_a_time(plain) == [3.0, 4.5, 1.5]
