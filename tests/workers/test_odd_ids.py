"""A message may say anything of itself: what no store can keep is no outage of the store."""

from __future__ import annotations

import logging
import math

import pytest

from celery_dlock import LockedTask, lock
from celery_dlock.core.events import Unavailable
from celery_dlock.messages.headers import identity_in, storable
from celery_dlock.messages.unique import UniqueTerms
from tests.services.desk import Desk

pytestmark = pytest.mark.stores

ODD = ["half a pair \ud800", "x" * 2_000_000]


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue", ignore_result=True)
    def charge(order: str, number: int) -> None:
        desk.ran.append(number)

    return charge


@pytest.mark.every_store
@pytest.mark.parametrize("task_id", ODD, ids=["no UTF-8", "two megabytes"])
def test_a_task_with_an_unstorable_id_runs(desk: Desk, charge: LockedTask, task_id: str) -> None:
    charge.apply_async(("42", 1), task_id=task_id)
    desk.deliver_all()
    assert desk.ran == [1]

    charge.apply_async(("42", 2), task_id=f"{task_id} again")
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
        assert desk.ran == [1]
    desk.deliver_all()
    assert desk.ran == [1, 2]
    assert desk.happened(Unavailable) == []


@pytest.mark.parametrize("name", ["retries", "replaced_task_nesting", "dlock", "debounced_at"])
def test_an_unstorable_header_puts_nothing_off(desk: Desk, charge: LockedTask, name: str) -> None:
    value = "half a pair \ud800"
    told = {"id": "odd", "task": "charge", name: value}
    headers = {
        "dlock": {"dlock": {"task": "odd:0:0", "key": value, "carried": {"a": value}}},
        "debounced_at": {"dlock_unique": told},
    }.get(name, {name: value})
    charge.apply_async(("42", 1), task_id="odd", headers=headers)
    desk.deliver_all()
    assert desk.ran == [1]
    assert desk.happened(Unavailable) == []


def test_a_unique_claim_that_was_never_in_the_store_is_not_looked_for(
    desk: Desk, charge: LockedTask, caplog: pytest.LogCaptureFixture
) -> None:
    claim = {"name": "charge(1)", "until": "done", "ttl": 60.0, "stored": "nonsense"}
    told = {"id": "odd", "task": "charge", **claim}
    charge.apply_async(("42", 1), task_id="odd", headers={"dlock_unique": told})
    with caplog.at_level(logging.INFO, logger="celery_dlock"):
        desk.deliver_all()
    assert desk.ran == [1]
    assert "was not updated" not in caplog.text


@pytest.mark.parametrize("value", ["half a pair \ud800", "2", [], {}, 10**400, math.nan, 1e300])
def test_a_number_that_is_none_counts_nothing(value: object) -> None:
    odd = {"id": "id", "retries": value, "replaced_task_nesting": value}
    assert identity_in(odd) == identity_in({"id": "id"})
    claim = {"name": "n", "until": "done", "ttl": value, "stored": ""}
    told = {"id": "id", "task": "charge", **claim}
    assert UniqueTerms.read({"id": "id", "task": "charge", "dlock_unique": told}) is None


def test_ids_that_cannot_be_kept_stay_apart() -> None:
    ids = [*ODD, "half a pair \ud801", "half a pair \\ud800", "x" * 2_000_001, "plain", "é"]
    kept = [storable(one) for one in ids]
    assert len(set(kept)) == len(ids)
    assert [one for one in ids if one in kept] == ["half a pair \\ud800", "plain", "é"]
    assert all(len(one.encode()) <= 1_000 for one in kept)
