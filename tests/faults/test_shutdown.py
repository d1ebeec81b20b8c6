"""Workers that are told to stop, and a broker that goes away."""

from __future__ import annotations

import pytest

from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services.effects import Effects
from tests.services.redelivery import work_off
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


def test_a_worker_that_loses_its_broker_in_mid_body_starts_no_second_body(
    make_lab: MakeLab, effects: Effects, own_redis_server: RedisServer
) -> None:
    lab = make_lab(celery={"broker_url": own_redis_server.url})
    with lab.worker(concurrency=2) as worker:
        result = lab.app.tasks["pay"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        # When the broker cuts all connections, so that the message is delivered again
        with own_redis_server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        until("it is delivered", lambda: worker.log.count(f"[{result.id}] received") >= 2)
        until("it is put back", lambda: f"[{result.id}] rescheduled" in worker.log)
        # And the body ends
        lab.go("body")
        assert result.get(timeout=30) == 1
        worker.stop()
        work_off(lab, worker)
    # Then there was no second one, and the copy was dropped
    assert len(lab.journal.read("start")) == 1
    assert len(effects.payments()) == 1
    assert result.state == "SUCCESS"
    assert nothing_is_held(lab, "42")
