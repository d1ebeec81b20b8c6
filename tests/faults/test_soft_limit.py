"""The soft time limit strikes while the lock is being taken or given back."""

from __future__ import annotations

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from tests.faults.conftest import MakeLab, all_have_left
from tests.services import faults
from tests.services.effects import Effects
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

#: Far longer than the test: a key that stays locked shows.
TTL = 120.0

ENTER = "celery_dlock.stores.redis.store:RedisBackend.enter"
LEAVE = "celery_dlock.stores.redis.store:RedisBackend.leave"
RELEASE = "celery_dlock.locks.manager:LockManager.release"
TAKE = "celery_dlock.delivery.taking:take"


@pytest.mark.parametrize(("when", "where"), [("after", ENTER), ("after", TAKE)])
def test_a_limit_while_taking_leaves_nothing_locked(
    make_lab: MakeLab, effects: Effects, when: str, where: str
) -> None:
    lab = make_lab(lock={"ttl": TTL}, faults=[faults.limit(when, where)])
    pay = lab.app.tasks["pay"]
    with lab.worker(concurrency=1):
        struck = pay.apply_async(("42", 1), soft_time_limit=1)
        with pytest.raises(SoftTimeLimitExceeded):
            struck.get(timeout=30)
        assert pay.delay("42", 2).get(timeout=30) == 2
        all_have_left(lab, "42")
    assert len(lab.journal.read("start")) == 1


@pytest.mark.parametrize(("when", "where"), [("before", LEAVE), ("after", RELEASE)])
def test_a_limit_while_giving_back_leaves_nothing_locked(
    make_lab: MakeLab, effects: Effects, when: str, where: str
) -> None:
    lab = make_lab(lock={"ttl": TTL}, faults=[faults.limit(when, where)])
    pay = lab.app.tasks["pay"]
    with lab.worker(concurrency=1):
        assert pay.delay("42", 1).get(timeout=30) == 1
        until("it strikes", lambda: faults.struck(lab.folder))
        assert pay.delay("42", 2).get(timeout=30) == 2
        all_have_left(lab, "42")
    assert lab.journal.read("lost") == []


def test_a_limit_while_the_store_does_not_answer_leaves_nothing_locked(
    make_lab: MakeLab, effects: Effects, own_redis_server: RedisServer
) -> None:
    lab = make_lab(celery={"dlock_url": own_redis_server.url}, lock={"ttl": TTL})
    pay = lab.app.tasks["pay"]
    with lab.worker(concurrency=1) as worker:
        assert pay.delay("warm").get(timeout=30) == 0
        all_have_left(lab, "warm")
        # Given a store that keeps its clients waiting until the limit has struck
        own_redis_server.pause()
        struck = pay.apply_async(("42", 1), soft_time_limit=1)
        until("the limit strikes", lambda: "Soft time limit (1s) exceeded" in worker.log)
        own_redis_server.resume()
        with pytest.raises(SoftTimeLimitExceeded):
            struck.get(timeout=30)
        # Then the next task finds the key free
        assert pay.delay("42", 2).get(timeout=30) == 2
        all_have_left(lab, "42")
