"""Publishing in order while something is away: the store, the broker, the publisher."""

from __future__ import annotations

import signal

import pytest
from celery import chain
from kombu.exceptions import OperationalError

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, all_have_left
from tests.services.faults import kill, struck
from tests.services.lab import Lab
from tests.services.publisher import publishing
from tests.services.redelivery import deliver_again, not_finished
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

KEY = "order:42"
LOCK = {"policy": "queue as published"}


def peek(lab: Lab) -> KeyState:
    return runtime(lab.app).backend.peek(KEY)


def at_the_broker(lab: Lab) -> int:
    with lab.app.connection_for_write() as connection:
        client = connection.default_channel.client
        return int(client.llen("celery")) + int(client.llen("celery.woken"))


def test_a_chain_goes_on_while_the_store_is_away(
    make_lab: MakeLab, own_redis_server: RedisServer
) -> None:
    lab = make_lab(celery={"dlock_url": own_redis_server.url}, lock=LOCK)
    apply = lab.app.tasks["apply"]
    with lab.worker(concurrency=1) as worker:
        # Given a task that runs, with another to follow
        second = chain(apply.si("41", 1, hold="a"), apply.si("42", 2)).apply_async()
        lab.journal.wait_for("start", order="41")
        # When the store is away as it ends
        own_redis_server.kill()
        lab.go("a")
        until("it goes by the broker", lambda: "goes to the broker" in worker.log)
        # Then it has succeeded, And the other runs when the store is there
        until("it is done", second.parent.ready)
        assert second.parent.state == "SUCCESS"
        assert not second.ready()
        own_redis_server.start()
        assert second.get(timeout=60) == 2
        all_have_left(lab, "42")
    assert len(lab.journal.read("start", order="42")) == 1


def test_what_the_broker_was_not_there_for_is_woken_later(
    make_lab: MakeLab, own_redis_server: RedisServer
) -> None:
    lab = make_lab(celery={"broker_url": own_redis_server.url}, lock=LOCK)
    apply = lab.app.tasks["apply"]
    # Given a publisher that knows the broker, And a broker that has gone since
    apply.delay("43", 0)
    own_redis_server.kill()
    # When it publishes before it has noticed
    result = apply.delay("42", 1)
    # Then the store has the message, called in vain
    assert [(grant.parked, grant.woken) for grant in peek(lab).grants] == [(True, 1)]
    # And now that it has noticed, the next one is refused and leaves nothing
    with pytest.raises(OperationalError):
        apply.delay("42", 2)
    assert peek(lab).parked == 0
    # And the first one runs once there is a broker
    own_redis_server.start()
    apply.delay("42", 3)
    with lab.worker(concurrency=2):
        assert result.get(timeout=60) == 1
        lab.journal.wait_for("end", number=3, timeout=60)
        all_have_left(lab, "42")
    assert [entry["number"] for entry in lab.journal.read("start", order="42")] == [1, 3]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_publisher_is_killed_between_taking_its_place_and_calling(
    make_lab: MakeLab, when: str
) -> None:
    lab = make_lab(lock=LOCK)
    celery, tasks = lab.config["celery"], [("42", 1), ("42", 2)]
    fault = kill(when, "celery_dlock.messages.waking:Waker.__call__")
    with publishing(lab.folder, "web", celery, tasks, faults=[fault]) as process:
        lab.go("publish")
        assert process.wait(60) == -signal.SIGKILL
    assert struck(lab.folder)
    assert at_the_broker(lab) == (when == "after")
    # Given others that publish behind it meanwhile
    lab.app.tasks["apply"].delay("42", 3)
    assert peek(lab).parked == 1
    # Then a worker calls it, and it runs once, before them
    with lab.worker(concurrency=2):
        lab.journal.wait_for("end", count=2, timeout=60)
        all_have_left(lab, "42")
        until("nothing is left", lambda: at_the_broker(lab) == 0 and not peek(lab).grants)
    assert [entry["number"] for entry in lab.journal.read("start")] == [1, 3]


def test_what_redis_has_handed_to_a_worker_that_dies_is_woken_again_from_the_store(
    make_lab: MakeLab,
) -> None:
    # kombu takes a message off its list before it notes that it has it (its issue 305)
    lab = make_lab(lock=LOCK, faults=[kill("before", "kombu.transport.redis:QoS.append")])
    with lab.worker(concurrency=1) as worker:
        result = lab.app.tasks["apply"].delay("42", 1)
        worker.ended()
        # Given a broker that knows nothing of it any more
        assert struck(lab.folder)
        assert deliver_again(lab.app) == 0
        assert not_finished(lab.app) == (0, 0)
        # Then another worker runs it, once
        worker.start()
        assert result.get(timeout=60) == 1
        all_have_left(lab, "42")
    assert len(lab.journal.read("start")) == 1
