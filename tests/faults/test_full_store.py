"""The Redis of the locks has no memory left while a body runs, and evicts nothing."""

from __future__ import annotations

import pytest

from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

TTL = 2.0


def test_a_body_keeps_its_lock_on_a_server_without_memory_and_the_next_ones_run_after_it(
    make_lab: MakeLab, effects: Effects, own_redis_server: RedisServer
) -> None:
    lab = make_lab(celery={"dlock_url": own_redis_server.url}, lock={"ttl": TTL, "policy": "queue"})
    pay = lab.app.tasks["pay"]
    store = runtime(lab.app).backend

    def ends() -> list[int]:
        holders = store.peek("order:42").holders
        assert holders, "the body has lost its key"
        return [holder.expires for holder in holders]

    with lab.worker(concurrency=2), own_redis_server.client() as client:
        # Given a body that runs, a task that waits behind it, and one that comes too late to wait
        first = pay.delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        second = pay.delay("42", 2)
        until("it waits", lambda: store.peek("order:42").parked == 1)
        (began,) = ends()
        client.config_set("maxmemory", 1)
        third = pay.delay("42", 3)
        # When the lease has been renewed three times over
        until("it is renewed", lambda: ends()[0] > began + 3 * TTL * 1_000_000)
        # Then nobody else has run, and the next one runs after it, memory or not
        assert len(lab.journal.read("start")) == 1
        lab.go("body")
        assert [first.get(timeout=30), second.get(timeout=30)] == [1, 2]
        # And what took room comes again until there is some
        client.config_set("maxmemory", 0)
        assert third.get(timeout=60) == 3
        all_have_left(lab, "42")
    assert lab.journal.read("lost") == []
    assert len(effects.payments()) == 3
