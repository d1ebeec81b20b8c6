"""A short campaign: whatever happens to the beats, every tick is run once.

``python -m tests.beat`` plays as many as you like.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beat.campaign import LENGTH, TTL, play
from tests.beat.plan import draw
from tests.services.require import require

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.server("redis")]

#: Between them they draw each kind of fault, most of them several times.
SEEDS = (1, 4, 7)


def test_every_tick_is_run_once_whatever_is_struck(tmp_path: Path) -> None:
    require("redis")
    groups = play(tmp_path, SEEDS)
    assert not [broken for each in groups for broken in each.violations], "\n".join(
        f"seed {each.seed}: {broken}" for each in groups for broken in each.violations
    )
    assert all(each.ran > 20 and each.struck for each in groups)
    assert sum(each.leads for each in groups) > len(SEEDS)


def test_a_seed_draws_the_same_strikes_again() -> None:
    assert draw(7, LENGTH, TTL) == draw(7, LENGTH, TTL) != draw(8, LENGTH, TTL)
