"""A host stands still for longer than a lease, with the store that is on it, and is woken."""

from __future__ import annotations

import time

import pytest

from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow, pytest.mark.once]

#: Seconds.
TTL = 1.5


@pytest.mark.parametrize("first", ["worker", "store"])
def test_a_host_that_stood_still_for_longer_than_a_lease_goes_on_and_pays_once(
    make_lab: MakeLab, effects: Effects, own_redis_server: RedisServer, first: str
) -> None:
    lab = make_lab(celery={"dlock_url": own_redis_server.url}, lock={"ttl": TTL, "policy": "queue"})
    pay, store = lab.app.tasks["pay"], runtime(lab.app).backend
    with lab.worker(concurrency=2) as worker:
        # Given a body that runs, and a message that waits for its key
        runs = pay.delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        waits = pay.delay("42", 2)
        until("it waits", lambda: store.peek("order:42").parked == 1)

        # When all of it stands still, and goes on in either order
        worker.pause()
        own_redis_server.pause()
        time.sleep(TTL * 1.5)  # which is what this is about
        wakes = [worker.resume, own_redis_server.resume]
        for wake in wakes if first == "worker" else reversed(wakes):
            wake()
        lab.go("body")

        # Then all is done, and paid once
        assert [runs.get(timeout=60), waits.get(timeout=60)] == [1, 2]
        all_have_left(lab, "42")
    assert sorted(effect for effect, _, _ in effects.payments()) == sorted([runs.id, waits.id])
