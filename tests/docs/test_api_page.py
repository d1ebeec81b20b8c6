from __future__ import annotations

from pathlib import Path

import celery_dlock
from celery_dlock import policies

REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"


def test_each_public_name_stands_in_one_of_the_three_tiers() -> None:
    tiers = (REFERENCE / "api.rst").read_text().partition("* - first")[2].partition("\nTasks\n")[0]

    assert [name for name in celery_dlock.__all__ if name not in tiers] == []


def test_what_a_policy_of_your_own_needs_has_a_module_of_its_own() -> None:
    page = (REFERENCE / "policies.rst").read_text().partition("Your own policy")[2]

    assert [name for name in policies.__all__ if name not in page] == []
    assert set(policies.__all__).isdisjoint(celery_dlock.__all__)
