"""What callers may pass: everything but what the lock hands over."""

from __future__ import annotations

import pytest

from celery_dlock import Lease, LockedTask
from tests.services.desk import Desk


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str, *, fencing_token: int, lease: Lease) -> list[object]:
        return [lease.key, fencing_token]

    return charge


@pytest.mark.parametrize("name", ["fencing_token", "lease"])
def test_callers_cannot_pass_what_the_lock_hands_over(
    desk: Desk, charge: LockedTask, name: str
) -> None:
    for call in (charge, charge.delay, charge.s().delay):
        with pytest.raises(TypeError, match=f"{name} is handed to the body"):
            call(**{"order": "42", name: 7})
    with pytest.raises(TypeError, match=f"{name} is handed to the body"):
        charge.apply(("42",), {name: 7}, throw=True)
    assert desk.size() == 0

    # By name nobody is there to refuse it; the worker does, and where people see it
    result = desk.app.send_task("charge", ("42",), {name: 7})
    desk.deliver()
    assert result.state == "FAILURE"
    assert f"{name} is handed to the body" in str(result.result)
    assert desk.holders("order:42") == []


def test_celerys_own_check_of_arguments_misses_nothing_and_asks_for_nothing_more(
    desk: Desk, charge: LockedTask
) -> None:
    charge.delay("42")
    with pytest.raises(TypeError):
        charge.delay()
    with pytest.raises(TypeError):
        charge.delay("42", "too many")
    assert desk.size() == 1
