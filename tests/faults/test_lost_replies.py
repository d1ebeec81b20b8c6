"""The request reaches the store, and the connection ends before its reply comes back."""

from __future__ import annotations

import pytest

from celery_dlock.runtime import runtime
from tests.faults.conftest import LOCKS, MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.proxy import Proxy, proxy_to
from tests.services.redelivery import deliver_again, work_off
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

#: Far longer than the test: a key that stays locked shows.
TTL = 120.0


def is_script(request: bytes) -> bool:
    return b"EVALSHA" in request


def is_leave(request: bytes) -> bool:
    return is_script(request) and b"$4\r\ndone\r\n" in request


def lab_behind(
    proxy: Proxy, make_lab: MakeLab, policy: str = "reschedule", *, sweeps: bool = True
) -> Lab:
    celery = {"dlock_url": f"redis://127.0.0.1:{proxy.port}/{LOCKS}"}
    return make_lab(celery=celery, lock={"ttl": TTL, "policy": policy}, sweeps=sweeps)


@pytest.mark.parametrize("times", [1, 2, 4])
def test_the_reply_to_entering_is_lost(
    make_lab: MakeLab, effects: Effects, redis_server: RedisServer, times: int
) -> None:
    # The client asks once more by itself; after that the claim is taken back, and again.
    with proxy_to(redis_server.port) as proxy:
        lab = lab_behind(proxy, make_lab)
        pay = lab.app.tasks["pay"]
        with lab.worker(concurrency=1):
            assert pay.delay("warm").get(timeout=30) == 0
            all_have_left(lab, "warm")
            proxy.lose_replies(times, is_script)
            results = [pay.delay("42", number) for number in (1, 2)]
            assert [result.get(timeout=30) for result in results] == [1, 2]
            all_have_left(lab, "42")
        assert len(proxy.lost) == times
        assert len(lab.journal.read("start", order="42")) == 2
        assert len(effects.payments()) == 3
        tokens = [payment[2] for payment in effects.payments()]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("times", [1, 2])
def test_the_reply_to_leaving_is_lost(
    make_lab: MakeLab, effects: Effects, redis_server: RedisServer, times: int
) -> None:
    with proxy_to(redis_server.port) as proxy:
        lab = lab_behind(proxy, make_lab)
        pay = lab.app.tasks["pay"]
        with lab.worker(concurrency=1) as worker:
            # Given a task whose leave was heard and not answered
            proxy.lose_replies(times, is_leave)
            result = pay.delay("42", 1, hold="body")
            lab.journal.wait_for("start")
            # And a second delivery of its message
            assert deliver_again(lab.app) == 1
            lab.go("body")
            assert result.get(timeout=30) == 1
            until("it was lost", lambda: len(proxy.lost) == times)
            # When the next one comes, it finds the key free
            assert pay.delay("42", 2).get(timeout=30) == 2
            worker.stop()
            work_off(lab, worker)
        # And the second delivery finds the first done
        assert len(lab.journal.read("start")) == 2
        assert len(effects.payments()) == 2
        assert result.state == "SUCCESS"
        # And nobody is told that a lock was lost
        assert lab.journal.read("lost") == []


def test_who_was_woken_in_a_reply_that_was_lost_is_woken_again(
    make_lab: MakeLab, redis_server: RedisServer
) -> None:
    with proxy_to(redis_server.port) as proxy:
        # Given workers of whom none sweeps: only who leaves calls the next one
        lab = lab_behind(proxy, make_lab, policy="queue", sweeps=False)
        pay = lab.app.tasks["pay"]
        with lab.worker(concurrency=2):
            # And a task that waits in the store behind another one
            first = pay.delay("42", 1, hold="body")
            lab.journal.wait_for("start")
            second = pay.delay("42", 2)
            until("it waits", lambda: runtime(lab.app).backend.peek("order:42").parked == 1)
            # When the reply to leaving, which calls it, does not come
            proxy.lose_replies(2, is_leave)
            lab.go("body")
            # Then it runs all the same
            assert [first.get(timeout=30), second.get(timeout=30)] == [1, 2]
            all_have_left(lab, "42")
        assert len(proxy.lost) == 2
        assert lab.journal.read("lost") == []
