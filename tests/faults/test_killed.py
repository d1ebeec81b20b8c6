"""A worker is killed at each place between the lock and the acknowledgement.

Whatever is killed where: the task ends, its effect happens once, the chain behind it goes on, the
result is there, and nothing stays locked or lies in the broker.
"""

from __future__ import annotations

import pytest
from celery import Signature, chain, chord
from celery.result import AsyncResult

from celery_dlock import lock
from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services import faults
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again, not_finished, work_off
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

BODY = "tests.services.effects:Effects.pay"
RUN = "celery_dlock.delivery.execution:Execution.run"
ENTER = "celery_dlock.stores.redis.store:RedisBackend.enter"
LEAVE = "celery_dlock.stores.redis.store:RedisBackend.leave"
RESULT = "celery.backends.base:Backend.mark_as_done"
COUNTED = "celery.backends.redis:RedisBackend.on_chord_part_return"
PUBLISH = "celery_dlock.delivery.carry_out:publish_again"
ACKNOWLEDGE = "celery.worker.request:Request.acknowledge"

# Where it is killed; how often the body runs to its end, and the callback, all told.
PLACES = [
    pytest.param("before", ENTER, 1, 1, id="before the lock"),
    pytest.param("after", ENTER, 1, 1, id="between the lock and the body"),
    pytest.param("before", BODY, 1, 1, id="in the body"),
    pytest.param("after", RUN, 2, 1, id="between the body and the callbacks"),
    pytest.param("before", RESULT, 2, 2, id="between the callbacks and the result"),
    pytest.param("after", RESULT, 2, 2, id="between the result and the leave"),
    pytest.param("after", LEAVE, 1, 1, id="between the leave and the acknowledgement"),
    pytest.param("after", ACKNOWLEDGE, 1, 1, id="as it is acknowledged"),
]


def kill_and_deliver_again(lab: Lab, work: Signature) -> AsyncResult:
    """Let a worker die at the lab's fault and another one do what is left, until all is done."""
    with lab.worker("prefork", concurrency=1) as worker:
        result = work.apply_async()
        until("the fault strikes", lambda: faults.struck(lab.folder))
        worker.ended()
        deliver_again(lab.app)
        work_off(lab, worker)
    return result


@pytest.mark.parametrize(("when", "where", "ends", "callbacks"), PLACES)
def test_a_chain_whose_first_task_is_killed(
    make_lab: MakeLab, effects: Effects, when: str, where: str, ends: int, callbacks: int
) -> None:
    # Given a worker that will be killed there, and a chain
    lab = make_lab(faults=[faults.kill(when, where)])
    tasks = lab.app.tasks
    work = chain(tasks["pay"].s("42", 7), tasks["note"].s())
    # When it was killed, and its message is delivered again
    last = kill_and_deliver_again(lab, work)
    # Then it has run as often as it had to, and the effect happened once
    starts = lab.journal.read("start")
    assert len(lab.journal.read("end")) == ends
    assert [payment[0] for payment in effects.payments()] == [last.parent.id]
    tokens = [start["token"] for start in starts]
    assert tokens == sorted(set(tokens))
    # And the chain has gone on, the results are there, and nothing is held
    assert len(lab.journal.read("callback", result=7)) == callbacks
    assert last.parent.state == "SUCCESS"
    assert last.parent.get() == 7
    assert last.get() == 7
    assert nothing_is_held(lab, "42")


@pytest.mark.parametrize(
    ("when", "where"),
    [
        pytest.param("after", RUN, id="between the body and the result"),
        pytest.param("before", COUNTED, id="between the result and the count"),
        pytest.param("after", COUNTED, id="between the count and the leave"),
        pytest.param("after", LEAVE, id="between the leave and the acknowledgement"),
    ],
)
def test_a_chord_whose_first_task_is_killed(
    make_lab: MakeLab, effects: Effects, when: str, where: str
) -> None:
    lab = make_lab(faults=[faults.kill(when, where)])
    tasks = lab.app.tasks
    header = [tasks["pay"].s("42", 7), tasks["pay"].s("43", 8)]

    body = kill_and_deliver_again(lab, chord(header, tasks["note"].s()))

    assert sorted(payment[1] for payment in effects.payments()) == ["order:42", "order:43"]
    assert len(lab.journal.read("callback")) == 1
    assert body.get() == [7, 8]
    assert nothing_is_held(lab, "42", "43")


@pytest.mark.parametrize(("when", "messages"), [("before", 1), ("after", 2)])
def test_a_kill_around_the_publish_leaves_messages_that_run_once(
    make_lab: MakeLab, effects: Effects, when: str, messages: int
) -> None:
    lab = make_lab(faults=[faults.kill(when, PUBLISH)], celery={"broker_pool_limit": None})
    with lab.worker("prefork", concurrency=1) as worker:
        # Given a key that is held, so that the task is to be published again
        with lock("order:42", app=lab.app, ttl=30):
            result = lab.app.tasks["pay"].delay("42", 7)
            # When its worker is killed before or after that, and before it acknowledges
            until("the fault strikes", lambda: faults.struck(lab.folder))
            worker.ended()
        deliver_again(lab.app)
        assert not_finished(lab.app) == (messages, 0)
        # And the key is free
        work_off(lab, worker)
        log = worker.log
    # Then the body ran once, whoever came first, and the other was dropped
    assert len(lab.journal.read("start")) == 1
    assert len(effects.payments()) == 1
    assert log.count(f"Task pay[{result.id}] had a duplicate dropped at ") == messages - 1
    assert result.get() == 7
    assert nothing_is_held(lab, "42")
