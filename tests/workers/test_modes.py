"""Several keys, several holders, readers: with real processes."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock import Lease, lock
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.until import until
from tests.workers.conftest import MakeLab


def test_with_a_limit_of_two_two_run_and_the_third_waits(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"limit": 2})
    apply = lab.app.tasks["apply"]

    with lab.worker("prefork", concurrency=4):
        # Given two that run, each in a process and a slot of its own
        for number in (1, 2):
            apply.delay("42", number, hold="two")
        lab.journal.wait_for("start", count=2)
        holders = runtime(lab.app).backend.peek("order:42").holders
        assert {holder.slot for holder in holders} == {0, 1}

        # When a third comes, it is refused until one of them is through
        third = apply.delay("42", 3)
        until("the third is refused", lambda: third.state == "RETRY")
        assert lab.journal.read("start", number=3) == []
        lab.go("two")
        assert third.get(timeout=30) == 3

    tokens = [entry["token"] for entry in lab.journal.read("start")]
    assert len(set(tokens)) == 3


@pytest.fixture
def transfer(desk: Desk) -> Any:
    @desk.locked(["account:{source}", "account:{target}"], name="transfer")
    def transfer(source: str, target: str, *, lease: Lease) -> list[Any]:
        return [list(lease.keys), len(set(lease.fencing_tokens.values()))]

    return transfer


def test_a_task_with_two_keys_takes_both(desk: Desk, transfer: Any) -> None:
    result = transfer.delay("b", "a")
    desk.deliver()

    assert result.get() == [["account:a", "account:b"], 2]
    assert desk.holders("account:a") == desk.holders("account:b") == []


@pytest.mark.parametrize("taken", ["account:a", "account:b"])
def test_a_task_with_two_keys_takes_none_when_one_is_taken(
    desk: Desk, transfer: Any, taken: str
) -> None:
    result = transfer.delay("b", "a")
    (free,) = {"account:a", "account:b"} - {taken}

    with lock(taken, app=desk.app, timeout=0):
        desk.deliver()
        assert result.state == "RETRY"
        assert desk.holders(free) == []
    desk.deliver()

    assert result.get() == [["account:a", "account:b"], 2]


def test_both_keys_may_be_the_same(desk: Desk, transfer: Any) -> None:
    result = transfer.delay("a", "a")
    desk.deliver()

    assert result.get() == [["account:a"], 1]
