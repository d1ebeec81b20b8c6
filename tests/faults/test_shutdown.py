"""Workers that are told to stop, and a broker that goes away."""

from __future__ import annotations

import signal

import pytest

from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services.effects import Effects
from tests.services.redelivery import deliver_again, not_finished, work_off
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


def test_a_warm_shutdown_finishes_the_body_and_frees_the_key(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab(lock={"ttl": 60.0})
    with lab.worker(concurrency=1) as worker:
        result = lab.app.tasks["pay"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        worker.send(signal.SIGTERM)
        until("it shuts down", lambda: "Warm shutdown" in worker.log)
        lab.go("body")
        assert worker.process is not None
        worker.process.wait(30)
    assert result.get(timeout=10) == 1
    assert len(effects.payments()) == 1
    assert nothing_is_held(lab, "42")
    assert not_finished(lab.app) == (0, 0)


def test_after_a_cold_shutdown_the_message_comes_back_and_runs(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab()
    with lab.worker(concurrency=1) as worker:
        # Given a worker that is shut down cold while the body runs
        result = lab.app.tasks["pay"].delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        worker.stop(signal.SIGQUIT)
        assert lab.journal.read("end") == []
        # When another one starts
        deliver_again(lab.app)
        lab.go("body")
        work_off(lab, worker)
    # Then the task was not taken for done
    assert len(lab.journal.read("start")) == 2
    assert len(effects.payments()) == 1
    assert result.get(timeout=10) == 1
    assert nothing_is_held(lab, "42")


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
