from __future__ import annotations

from pathlib import Path

import celery_dlock

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/api.rst"


def test_each_public_name_stands_in_one_of_the_three_tiers() -> None:
    tiers = PAGE.read_text().partition("* - first")[2].partition("\nTasks\n")[0]

    assert [name for name in celery_dlock.__all__ if name not in tiers] == []
