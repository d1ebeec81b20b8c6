"""A short campaign: whatever is struck, what was promised is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import draw, keys_of, mixture
from tests.chaos.round import play
from tests.chaos.stage import TTL, Setting, kinds_of
from tests.chaos.ways import FEATURES
from tests.services.require import require

pytestmark = [pytest.mark.server("redis"), pytest.mark.server("rabbitmq"), pytest.mark.slow]


def test_what_was_promised_is_kept_whatever_is_struck(tmp_path: Path) -> None:
    # On a broker that loses nothing itself. Redis does, with a worker that is killed as it takes a
    # message (kombu pops it first): there the campaign has to tell whose loss it was.
    require("redis")
    require("rabbitmq")
    setting = Setting(broker="rabbitmq")
    figures = play(draw(2026, 24.0, kinds_of(setting), setting.ttl), setting, tmp_path)
    assert not figures.violations, "\n".join(map(str, figures.violations))
    assert figures.sent_again == 0
    # And it was worth the name: nearly all runs held their lock, and faults did strike
    assert figures.live >= 0.9 * figures.tasks > 100
    assert figures.struck.total() >= 10


def test_a_seed_draws_the_same_schedule_again() -> None:
    kinds = kinds_of(Setting())
    assert draw(7, 30.0, kinds, TTL) == draw(7, 30.0, kinds, TTL) != draw(8, 30.0, kinds, TTL)


def test_a_feature_less_leaves_the_others_and_the_faults_as_they_are() -> None:
    kinds = kinds_of(Setting())
    more, less = (draw(7, 20.0, kinds, TTL, keys=keys_of(n)) for n in (["queue", "skip"], ["skip"]))
    assert more.strikes == less.strikes
    assert [each for each in more.sendings if each.key.name == "skipping"] == [*less.sendings]


def test_a_hundred_seeds_draw_every_feature_and_never_all_of_them() -> None:
    drawn = [mixture(seed) for seed in range(100)]
    assert {name for each in drawn for name in each} == FEATURES.keys()
    assert max(map(len, drawn)) < len(FEATURES) / 2
