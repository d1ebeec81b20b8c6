"""The campaign finds what is known to be wrong: a store with a defect is told from a sound one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import pytest

from tests.chaos import defects
from tests.chaos.checker import Check
from tests.chaos.plan import Kind, draw, keys_of
from tests.chaos.round import Figures, play
from tests.chaos.stage import TTL, Setting
from tests.chaos.ways import KEYS, Key
from tests.services.planted import one_in_every_run
from tests.services.require import require

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

#: The defect, the faults that bring it out, how many tasks are sent, and what must be seen.
CAUGHT = [
    (defects.FreesWhoeverHolds, (Kind.PAUSE_WORKER,), 5.0, Check.OVERLAP),
    (defects.WakesTheLast, (), 1.0, Check.ORDER),  # who came before the next one was sent
    (defects.WakesNobody, (), 1.0, Check.LEFT),
    (defects.ForgetsWhatIsDone, (Kind.COPY,), 3.0, Check.REPEATED),
    (defects.HandsOutOldTokens, (), 1.0, Check.TOKENS),
    (defects.KeepsAKeyOfTheDead, (Kind.KILL_WORKER,), 3.0, Check.LOCKED),
    (defects.LetsOneMoreIn, (), 2.0, Check.OVERLAP),
]

#: Whom a fault hits is chance: the first round is nearly always enough, but one run in many needs
#: more than three.
ROUNDS = 8


@pytest.mark.parametrize(
    "defect", one_in_every_run({case[0].__name__: case for case in CAUGHT}, "WakesTheLast")
)
def test_a_store_with_a_defect_is_caught(
    tmp_path: Path, defect: tuple[type[defects.Copy], tuple[Kind, ...], float, Check]
) -> None:
    store, kinds, pace, check = defect
    found: set[StrEnum] = set()
    for seed in range(ROUNDS):
        figures = played(tmp_path, store, seed, kinds, pace, patience=10.0)
        found |= {violation.check for violation in figures.violations}
        if check in found:
            return
    pytest.fail(f"that {check} was not seen to be broken, only {found}")


#: Features, each with what is seen to be broken of it, and how that is told.
BROKEN = [
    ("readers", Check.OVERLAP, "reads book"),
    ("parents", Check.OVERLAP, "reads tree"),
    ("reserved retries", Check.RESERVED, "its retry"),
    ("cooldown", Check.COOLED, "on cooling"),
    ("replace", Check.MISSING, "on newest"),
    ("debounce", Check.MISSING, "on sudden"),
    ("skip", Check.MISSING, "on skipping"),
    ("unique until done", Check.DOUBLED, "on once"),
]


@pytest.mark.planted
def test_what_a_feature_promises_is_seen_to_be_broken(tmp_path: Path) -> None:
    left = BROKEN
    for seed in range(ROUNDS):
        keys = keys_of({feature: None for feature, _, _ in left})
        found = played(tmp_path, defects.KeepsNothing, seed, (), 3.0, patience=10.0, keys=keys)
        left = [
            (feature, check, where)
            for feature, check, where in left
            if not any(each.check is check and where in each.what for each in found.violations)
        ]
        if not left:
            return
    pytest.fail(f"not seen to be broken: {left}")


@pytest.mark.planted
def test_the_same_store_without_a_defect_is_not(tmp_path: Path) -> None:
    kinds = (Kind.PAUSE_WORKER, Kind.KILL_WORKER, Kind.COPY)
    figures = played(tmp_path, defects.Copy, 0, kinds, pace=3.0, patience=60.0)
    assert not figures.violations


@pytest.fixture(autouse=True)
def nothing_stays_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round adds its folder, as its workers do."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def played(
    folder: Path,
    store: type[defects.Copy],
    seed: int,
    kinds: tuple[Kind, ...],
    pace: float,
    patience: float,
    keys: Sequence[Key] = KEYS,
) -> Figures:
    """A short round on *store*."""
    require("redis")
    own = folder / str(seed)
    own.mkdir()
    defects.install(own)
    # A key on which nobody runs for most of a lease explains a good deal, and is common where the
    # host is slow. Where nothing is struck, nothing waits for a lease to end.
    ttl = TTL if kinds else 4 * TTL
    setting = Setting(store="sqlite", scheme=defects.scheme(store), ttl=ttl)
    return play(draw(seed, 6.0, kinds, ttl, pace, keys), setting, own, patience)
