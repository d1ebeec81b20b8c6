"""Backoff with full jitter: bounded, random, never zero."""

from __future__ import annotations

import math
import random
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.core.backoff import ASK_FIRST, ASK_LAST, CHANCE, FullJitter, pauses
from celery_dlock.core.checks import LONGEST_DURATION, SHORTEST_DURATION
from celery_dlock.errors import ConfigurationError


def test_the_ceiling_doubles_up_to_the_cap() -> None:
    backoff = FullJitter(base=1, cap=60)

    assert [backoff.ceiling(n) for n in (*range(7), 10_000)] == [1, 2, 4, 8, 16, 32, 60, 60]


@given(
    base=st.floats(SHORTEST_DURATION, LONGEST_DURATION / 1e6),
    factor=st.floats(1, 1e6),
    attempt=st.integers(0, 10_000) | st.just(10**30),
    seed=st.integers(),
)
def test_a_delay_is_within_its_ceiling(base: float, factor: float, attempt: int, seed: int) -> None:
    backoff = FullJitter(base, base * factor)

    delay = backoff.delay(attempt, random.Random(seed).random)

    assert 0 < delay <= backoff.ceiling(attempt) <= backoff.cap


def test_the_smallest_and_the_largest_random_number_stay_inside() -> None:
    backoff = FullJitter(base=1, cap=60)

    assert backoff.delay(3, lambda: 0.0) == 8.0
    assert 0 < backoff.delay(3, lambda: math.nextafter(1.0, 0.0)) < 1e-9


def test_delays_spread_over_the_whole_range() -> None:
    rng = random.Random(1)
    delays = [FullJitter(base=1, cap=60).delay(4, rng.random) for _ in range(1000)]

    quarters = [sum(1 for d in delays if q * 4 < d <= q * 4 + 4) for q in range(4)]
    assert sum(quarters) == 1000
    assert all(200 < share < 300 for share in quarters)


@pytest.mark.parametrize(
    ("base", "cap"),
    [(0, 60), (-1, 60), (1, 0.5), (1, math.inf), (math.nan, 60), (1, math.nan), ("1", 60)],
)
def test_a_backoff_that_cannot_work_is_refused(base: Any, cap: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^(base|cap)\b"):
        FullJitter(base, cap)


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_pauses_double_up_to_the_longest_and_are_half_of_it_at_least(
    monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    monkeypatch.setattr(CHANCE, "uniform", lambda least, most: {least: least, most: most}[part])

    longest = [ASK_FIRST * 2**n for n in range(5)] + [ASK_LAST] * 2

    assert list(islice(pauses(), 7)) == [each * part for each in longest]
