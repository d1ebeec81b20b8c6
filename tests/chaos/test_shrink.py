"""What is left of a round that breaks a promise is what breaks it."""

from __future__ import annotations

from tests.chaos.plan import draw, keys_of, mixture
from tests.chaos.shrink import Part, shrunk
from tests.chaos.stage import TTL, Setting, kinds_of
from tests.chaos.ways import FEATURES

WHOLE = Part(("queue", "skip", "replace"), tuple(range(40)))


def needs(part: Part) -> bool:
    """Two features, and two faults far apart."""
    return {"queue", "replace"} <= {*part.features} and {3, 31} <= {*part.faults}


def test_what_is_left_is_what_breaks_it() -> None:
    assert shrunk(WHOLE, needs, tries=500) == Part(("queue", "replace"), (3, 31))


def test_no_more_is_tried_than_may_be() -> None:
    tried: list[Part] = []

    def breaks(part: Part) -> bool:
        tried.append(part)
        return needs(part)

    assert shrunk(WHOLE, breaks, tries=5) == Part(("queue", "replace"), WHOLE.faults)
    assert len(tried) == 5


def test_a_feature_less_leaves_the_others_and_the_faults_as_they_are() -> None:
    kinds = kinds_of(Setting())
    more, less = (draw(7, 20.0, kinds, TTL, keys=keys_of(n)) for n in (["queue", "skip"], ["skip"]))
    assert more.strikes == less.strikes
    assert [each for each in more.sendings if each.key.name == "skipping"] == [*less.sendings]


def test_a_hundred_seeds_draw_every_feature_and_never_all_of_them() -> None:
    drawn = [mixture(seed) for seed in range(100)]
    assert {name for each in drawn for name in each} == FEATURES.keys()
    assert max(map(len, drawn)) < len(FEATURES) / 2
