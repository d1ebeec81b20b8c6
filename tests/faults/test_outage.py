"""The store goes down, stops answering, or has no memory left: broker and results do not."""

from __future__ import annotations

import time

import pytest

from celery_dlock.core.lease import NOT_RENEWED
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.load import all_have_ended
from tests.services.proxy import proxy_to
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

TTL = 3.0


def lab_with_store(make_lab: MakeLab, store: RedisServer) -> Lab:
    """Its locks alone are on *store*, which is given half a second to answer."""
    options = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    return make_lab(
        celery={"dlock_url": store.url, "dlock_backend_options": options}, lock={"ttl": TTL}
    )


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_a_body_learns_in_time_that_its_lease_can_no_longer_be_trusted(
    make_lab: MakeLab, own_redis_server: RedisServer, how: str
) -> None:
    lab = lab_with_store(make_lab, own_redis_server)
    with lab.worker(concurrency=1) as worker:
        # Given a body whose lease has been renewed at least once
        result = lab.app.tasks["outlive"].delay("42")
        (start,) = lab.journal.wait_for("start")
        if how == "killed":
            own_redis_server.kill()
        else:
            own_redis_server.pause()
        away = time.time()
        # When the store does not come back
        (noticed,) = lab.journal.wait_for("noticed")
        (lost,) = lab.journal.wait_for("lost")
        # Then the lease is lost within its ttl, by the holder's own clock
        assert start["at"] + TTL * 0.9 < noticed["at"] < away + TTL + 0.5
        assert lost["at"] < away + TTL + 1.5
        assert lost["reasons"] == [NOT_RENEWED]
        # And before that it is uncertain, which is said once
        before, _, _ = worker.log.partition("lost its lock on 'order:42'")
        assert before.count("was uncertain of its lock on 'order:42'") == 1
        # And the result of the body is not hidden by any of this
        assert result.get(timeout=30) is True
        if how == "paused":
            own_redis_server.resume()
    assert len(lab.journal.read("lost")) == 1


def test_an_outage_is_said_once_by_a_worker_however_many_children_it_has(
    make_lab: MakeLab, own_redis_server: RedisServer
) -> None:
    lab = lab_with_store(make_lab, own_redis_server)
    pay = lab.app.tasks["pay"]
    with lab.worker(concurrency=2) as worker:
        held = lab.app.tasks["outlive"].delay("held")
        lab.journal.wait_for("start")
        own_redis_server.kill()
        lab.journal.wait_for("lost")
        results = [held, *(pay.delay(str(order), 1) for order in range(4))]
        until("it is said", lambda: "the lock store is unavailable" in worker.log)
        until(
            "all have asked",
            lambda: all(f"[{r.id}] was rescheduled" in worker.log for r in results[1:]),
        )
        own_redis_server.start()
        until("it is said", lambda: "the lock store is available again" in worker.log)
        all_have_ended(results, timeout=120)
        warnings = [line for line in worker.log.splitlines() if "WARNING/" in line]
    said = [line for line in warnings if "lost its lock on 'order:held'" not in line]
    assert ["unavailable" in line for line in said] == [True, False], said
    assert len(said) == len(warnings) - 1
    assert all("WARNING/MainProcess" in line for line in said)


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


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_tasks_wait_for_the_store_and_run_once(
    make_lab: MakeLab, effects: Effects, own_redis_server: RedisServer, answer: bytes | None
) -> None:
    with proxy_to(own_redis_server.port) as proxy:
        # Given a store that is down, or an address where something else answers
        proxy.nonsense = answer
        if answer is None:
            own_redis_server.kill()
        lab = make_lab(celery={"dlock_url": f"redis://127.0.0.1:{proxy.port}/0"})
        with lab.worker(concurrency=2):
            # When two tasks come, they are rescheduled, and again
            results = [lab.app.tasks["pay"].delay("42", number) for number in (1, 2)]
            for result in results:
                until("it is rescheduled", lambda r=result: r.state == "RETRY")  # type: ignore[misc]
            assert lab.journal.read("start") == []
            # And the store is there
            if answer is None:
                own_redis_server.start()
            proxy.nonsense = None
            # Then each runs once
            assert [result.get(timeout=60) for result in results] == [1, 2]
            all_have_left(lab, "42")
        assert len(lab.journal.read("start")) == 2
        assert len(effects.payments()) == 2
