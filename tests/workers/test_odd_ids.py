"""A task id may be any text: one that no store can keep is no outage of the store."""

from __future__ import annotations

import pytest

from celery_dlock import LockedTask, lock
from celery_dlock.core.events import Unavailable
from celery_dlock.messages.headers import storable
from tests.services.desk import Desk

pytestmark = pytest.mark.every_store

ODD = ["half a pair \ud800", "x" * 2_000_000]


@pytest.fixture
def ran(desk: Desk) -> list[int]:
    return []


@pytest.fixture
def charge(desk: Desk, ran: list[int]) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue", ignore_result=True)
    def charge(order: str, number: int) -> None:
        ran.append(number)

    return charge


@pytest.mark.parametrize("task_id", ODD, ids=["no UTF-8", "two megabytes"])
def test_a_task_whose_id_no_store_can_keep_runs_and_waits_like_any(
    desk: Desk, charge: LockedTask, ran: list[int], task_id: str
) -> None:
    charge.apply_async(("42", 1), task_id=task_id)
    desk.deliver_all()
    assert ran == [1]

    charge.apply_async(("42", 2), task_id=f"{task_id} again")
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
        assert ran == [1]
    desk.deliver_all()
    assert ran == [1, 2]
    assert desk.happened(Unavailable) == []


def test_ids_that_cannot_be_kept_stay_apart() -> None:
    ids = [*ODD, "half a pair \ud801", "half a pair \\ud800", "x" * 2_000_001, "plain", "é"]
    kept = [storable(one) for one in ids]
    assert len(set(kept)) == len(ids)
    assert [one for one in ids if one in kept] == ["half a pair \\ud800", "plain", "é"]
    assert all(len(one.encode()) <= 1_000 for one in kept)
