"""The store is not there when the worker starts, or something else answers at its address."""

from __future__ import annotations

import pytest

from tests.faults.conftest import MakeLab, all_have_left
from tests.services.effects import Effects
from tests.services.proxy import proxy_to
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff" * 64])
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
