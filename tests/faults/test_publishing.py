"""Publishing in order while something is away: the store, its reply, the broker, the publisher."""

from __future__ import annotations

import contextlib
import signal
import uuid

import pytest
from celery import chain
from kombu.exceptions import OperationalError

from celery_dlock import BackendUnavailable
from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.faults.conftest import LOCKS, MakeLab, all_have_left
from tests.services.faults import kill, struck
from tests.services.lab import Lab
from tests.services.proxy import proxy_to
from tests.services.publisher import publishing
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


@pytest.mark.parametrize("times", [1, 2])
def test_without_the_store_the_publisher_gets_an_error_and_nothing_is_half_done(
    make_lab: MakeLab, own_redis_server: RedisServer, times: int
) -> None:
    lab = make_lab(celery={"dlock_url": own_redis_server.url}, lock=LOCK)
    apply = lab.app.tasks["apply"]
    if times == 2:
        apply.delay("warm")
    sent = at_the_broker(lab)
    # When the store is gone
    own_redis_server.kill()
    with pytest.raises(BackendUnavailable):
        apply.delay("42", 1)
    # Then nothing is at the broker
    assert at_the_broker(lab) == sent
    # Nor in the store when it is back, and the next one is the first
    own_redis_server.start()
    assert peek(lab) == KeyState()
    apply.delay("42", 2)
    with lab.worker(concurrency=1):
        lab.journal.wait_for("end", order="42")
        all_have_left(lab, "42")
    assert [entry["number"] for entry in lab.journal.read("start", order="42")] == [2]


@pytest.mark.parametrize("times", [1, 2])
def test_after_a_lost_reply_it_can_be_published_again_under_its_id(
    make_lab: MakeLab, redis_server: RedisServer, times: int
) -> None:
    with proxy_to(redis_server.port) as proxy:
        lab = make_lab(celery={"dlock_url": f"redis://127.0.0.1:{proxy.port}/{LOCKS}"}, lock=LOCK)
        apply = lab.app.tasks["apply"]
        apply.delay("42", 1)
        # Given a message that the store has, And a publisher that was not told
        proxy.lose_replies(times, lambda request: b"EVALSHA" in request)
        task_id = uuid.uuid4().hex
        with pytest.raises(BackendUnavailable) if times == 2 else contextlib.nullcontext():
            # The client asks once more by itself
            apply.apply_async(("42", 2), task_id=task_id)
        assert len(proxy.lost) == times
        assert peek(lab).parked == 1
        # When it publishes it again, and the next
        apply.apply_async(("42", 2), task_id=task_id)
        apply.delay("42", 3)
        # Then it has the place that it had
        assert peek(lab).parked == 2
        with lab.worker(concurrency=2):
            lab.journal.wait_for("end", count=3)
            all_have_left(lab, "42")
    assert [entry["number"] for entry in lab.journal.read("start")] == [1, 2, 3]


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


def test_a_publisher_that_cannot_reach_the_broker_gets_an_error_and_leaves_nothing(
    make_lab: MakeLab, own_redis_server: RedisServer
) -> None:
    lab = make_lab(celery={"broker_url": own_redis_server.url}, lock=LOCK)
    own_redis_server.kill()

    with pytest.raises(OperationalError):
        lab.app.tasks["apply"].delay("42", 1)

    assert peek(lab) == KeyState()


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


def test_killed_before_the_store_has_heard_of_it_nothing_is_half_done(make_lab: MakeLab) -> None:
    lab = make_lab(lock=LOCK)
    fault = kill("before", "celery_dlock.stores.redis.store:RedisBackend.enter")
    celery = lab.config["celery"]
    with publishing(lab.folder, "web", celery, [("42", 1)], faults=[fault]) as process:
        lab.go("publish")
        assert process.wait(60) == -signal.SIGKILL
    assert at_the_broker(lab) == 0
    assert peek(lab) == KeyState()
