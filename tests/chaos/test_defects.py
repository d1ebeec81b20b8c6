"""The campaign finds what is known to be wrong: a store with a defect is told from a sound one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos import defects
from tests.chaos.checker import Check
from tests.chaos.plan import Kind, draw
from tests.chaos.round import play
from tests.chaos.stage import TTL, Setting
from tests.services.redis import require_redis

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

CAUGHT = [
    (defects.FreesWhoeverHolds, (Kind.PAUSE_WORKER,), Check.OVERLAP),
    (defects.LetsNewcomersOvertake, (), Check.ORDER),
    (defects.WakesNobody, (), Check.LEFT),
    (defects.ForgetsWhatIsDone, (Kind.COPY,), Check.REPEATED),
    (defects.HandsOutOldTokens, (), Check.TOKENS),
    (defects.KeepsAKeyOfTheDead, (Kind.KILL_WORKER,), Check.LOCKED),
]


@pytest.mark.parametrize(("defect", "kinds", "check"), CAUGHT)
def test_a_store_with_a_defect_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    defect: type[defects.Copy],
    kinds: tuple[Kind, ...],
    check: Check,
) -> None:
    require_redis()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    defects.install(tmp_path)
    schedule = draw(1, 6.0, kinds, TTL, pace=5.0)
    setting = Setting(store="sqlite", scheme=defect.__name__.lower())
    figures = play(schedule, setting, tmp_path, patience=5.0)
    assert check in {violation.check for violation in figures.violations}, figures
