"""A message is delivered twice: one copy lies prefetched, or comes while the body of one runs."""

from __future__ import annotations

import pytest

from celery_dlock import lock
from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services.effects import Effects
from tests.services.redelivery import deliver_again, not_finished, work_off
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


@pytest.mark.parametrize(("policy", "ends"), [("fail", "FAILURE"), ("skip", "SUCCESS")])
def test_a_task_that_its_key_was_refused_for_good_does_not_run_from_a_prefetched_copy(
    make_lab: MakeLab, policy: str, ends: str
) -> None:
    lab = make_lab(lock={"policy": policy}, task={"acks_late": False})
    apply, note = lab.app.tasks["apply"], lab.app.tasks["note"]
    with lab.worker("prefork", concurrency=1) as hoards:
        # Given a worker that is busy, and has a message behind it
        apply.delay("other", hold="other")
        lab.journal.wait_for("start", order="other")
        result = apply.apply_async(("42",), link=note.s("told"), link_error=note.si(1, "told"))
        until("it is prefetched", lambda: not_finished(lab.app) == (0, 1))

        # When that is delivered to another one as well, where its key is taken
        with (
            lock("order:42", app=lab.app, ttl=60),
            lab.worker("prefork", concurrency=1) as ends_it,
        ):
            assert deliver_again(lab.app) == 1
            until("it has ended", lambda: lab.app.AsyncResult(result.id).state == ends)
            ends_it.stop()
        # And the first one comes to it
        lab.go("other")
        dropped = f"Task apply[{result.id}] had a duplicate dropped at "
        until("it is at its copy", lambda: dropped in hoards.log or lab.journal.read(order="42"))
        hoards.stop()

    # Then it does not run, And nobody is told of its end a second time
    assert lab.journal.read(order="42") == []
    assert len(lab.journal.read("told")) <= 1
    assert lab.app.AsyncResult(result.id).state == ends


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
        until("it is put back", lambda: f"[{result.id}] was rescheduled" in worker.log)
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
