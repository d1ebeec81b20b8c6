"""Waiting in the store: nothing in the worker, the order kept, and every message ends somewhere."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery.exceptions import TaskRevokedError

from celery_dlock import LockContended, LockTimeout
from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import MakeLab

KEY = "order:42"


def peek(lab: Lab) -> KeyState:
    return runtime(lab.app).backend.peek(KEY)


def parked(lab: Lab, count: int) -> None:
    until(f"{count} are parked", lambda: peek(lab).parked == count)


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(lock={"policy": "queue"}, task={"acks_late": True})


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_tasks_of_one_order_run_in_the_order_of_their_arrival(lab: Lab, pool: str) -> None:
    with lab.worker(pool, concurrency=2):
        lab.app.tasks["apply"].delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        sent = [lab.app.tasks["apply"].delay("42", number) for number in range(1, 20)]
        parked(lab, 19)
        lab.go("first")
        assert [result.get(timeout=20) for result in sent] == list(range(1, 20))

    assert [entry["number"] for entry in lab.journal.read("start")] == list(range(20))
    assert {entry["waits"] for entry in lab.journal.read("start")[1:]} == {1}
    assert {entry["retries"] for entry in lab.journal.read("start")} == {0}


def test_who_waits_leaves_the_worker_to_others(lab: Lab) -> None:
    with lab.worker("prefork", concurrency=2):
        # Given an order in work and twenty messages that wait for it
        lab.app.tasks["apply"].delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        for number in range(1, 21):
            lab.app.tasks["apply"].delay("42", number)
        parked(lab, 20)

        # Then the other process is free for other orders
        assert lab.app.tasks["apply"].delay("43", 7).get(timeout=20) == 7
        lab.go("first")
        lab.journal.wait_for("end", count=22)


@pytest.mark.slow
def test_what_waits_behind_a_worker_that_died_is_woken_when_its_lease_ends(
    make_lab: MakeLab,
) -> None:
    lab = make_lab(
        celery={"worker_prefetch_multiplier": 1},
        lock={"policy": "queue", "ttl": 1.5},
        task={"acks_late": True},
    )
    with lab.worker("prefork", concurrency=1) as first:
        lab.app.tasks["apply"].delay("42", 0, hold="never")
        lab.journal.wait_for("start", number=0)
        with lab.worker("prefork", concurrency=1):
            waiting = lab.app.tasks["apply"].delay("42", 1)
            parked(lab, 1)

            first.kill()

            assert waiting.get(timeout=20) == 1


@pytest.mark.slow
def test_who_waits_for_too_long_fails_visibly(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "queue for a second"}, task={"acks_late": True})
    with lab.worker("prefork", concurrency=2):
        lab.app.tasks["apply"].delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)

        with pytest.raises(LockTimeout, match=KEY):
            lab.app.tasks["apply"].delay("42", 1).get(timeout=30)

        # And nothing of it is left, nor in anybody's way
        until("its turn is gone", lambda: peek(lab).grants == ())
        lab.go("first")
        lab.journal.wait_for("end", number=0)
        assert lab.app.tasks["apply"].delay("42", 2).get(timeout=20) == 2


def test_a_full_queue_refuses_the_newest(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "queue of two"}, task={"acks_late": True})
    with lab.worker("prefork", concurrency=2):
        lab.app.tasks["apply"].delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        for number in (1, 2):
            lab.app.tasks["apply"].delay("42", number)
            parked(lab, number)

        with pytest.raises(LockContended, match=KEY):
            lab.app.tasks["apply"].delay("42", 3).get(timeout=20)

        lab.go("first")
        lab.journal.wait_for("end", count=3)


def test_the_newest_replaces_the_one_that_waits(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"policy": "replace"}, task={"acks_late": True})
    with lab.worker("prefork", concurrency=2):
        lab.app.tasks["apply"].delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        old = lab.app.tasks["apply"].delay("42", 1)
        parked(lab, 1)
        new = lab.app.tasks["apply"].delay("42", 2)

        # Then the old one ends, saying why, while the first still runs
        result = old.get(timeout=20)
        assert result["skipped"] is True
        assert "newer" in result["reason"]

        lab.go("first")
        assert new.get(timeout=20) == 2
    assert [entry["number"] for entry in lab.journal.read("start")] == [0, 2]


def test_a_message_that_expires_while_it_waits_gives_its_turn_to_the_next(lab: Lab) -> None:
    with lab.worker("prefork", concurrency=2):
        lab.app.tasks["apply"].delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        expires = datetime.now(UTC) + timedelta(seconds=5)
        expiring = lab.app.tasks["apply"].apply_async(("42", 1), expires=expires)
        parked(lab, 1)
        after = lab.app.tasks["apply"].delay("42", 2)
        parked(lab, 2)
        until("it has expired", lambda: datetime.now(UTC) > expires)
        lab.go("first")

        assert after.get(timeout=20) == 2
        with pytest.raises(TaskRevokedError):
            expiring.get(timeout=20)
