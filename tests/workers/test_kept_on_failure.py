"""What a broker keeps of a task that failed is no copy of a finished task: it runs again."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
from kombu.connection import Connection
from kombu.entity import Queue

from celery_dlock import LockedTask, lock
from celery_dlock import Queue as InTheQueue
from celery_dlock.core.events import Dropped
from tests.services.brokers import close, kept_in_sqlite, lying_in, over_rabbitmq
from tests.services.desk import Desk
from tests.services.lab import Lab
from tests.services.rabbitmq import RabbitMQServer
from tests.services.until import until
from tests.workers.conftest import nothing_is_left

#: Each way to tell Celery not to acknowledge a message whose task has failed.
BY_TASK = [{"acks_on_failure_or_timeout": False}]
BY_SETTING = [{"task_acks_on_failure_or_timeout": False}]
if celery.VERSION >= (5, 7):
    BY_TASK.append({"acks_on_failure": False})
    BY_SETTING.append({"task_acks_on_failure": False})

POLICIES = ["reschedule", "queue", InTheQueue(keep=True)]


def failing(desk: Desk, **options: Any) -> LockedTask:
    """A task that fails, until it has run three times."""

    @desk.locked("order:{order}", name="charge", **{"acks_late": True, **options})
    def charge(order: str) -> int:
        desk.ran.append(order)
        if len(desk.ran) < 3:
            raise ValueError(order)
        return len(desk.ran)

    return charge


def fails_twice(desk: Desk, charge: LockedTask) -> None:
    """Let the broker deliver the message of *charge* again, until it succeeds."""
    for tries in (1, 2):
        charge.apply_async(("42",), task_id="one")  # the second time as from a dead-letter exchange
        message = desk.deliver()
        assert message._state == "REJECTED"
        assert (len(desk.ran), desk.result("one").state) == (tries, "FAILURE")
        assert nothing_is_left(desk)
    charge.apply_async(("42",), task_id="one")
    message = desk.deliver()

    assert message._state == "ACK"
    assert (len(desk.ran), desk.result("one").get()) == (3, 3)
    assert desk.happened(Dropped) == []
    # And now it is done: a copy of it is dropped
    charge.apply_async(("42",), task_id="one")
    desk.deliver()
    assert [event.reason for event in desk.happened(Dropped)] == ["done"]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("option", BY_TASK, ids=repr)
def test_an_unacknowledged_failure_is_not_the_end(desk: Desk, policy: Any, option: Any) -> None:
    fails_twice(desk, failing(desk, on_contention=policy, **option))


@pytest.mark.parametrize("setting", BY_SETTING, ids=repr)
def test_so_for_all_tasks_where_the_setting_says_so(desk: Desk, setting: Any) -> None:
    desk.app.conf.update(setting)
    fails_twice(desk, failing(desk))


def test_with_early_acknowledgement_a_failure_is_final_all_the_same(desk: Desk) -> None:
    charge = failing(desk, acks_late=False, acks_on_failure_or_timeout=False)
    result = charge.delay("42")
    desk.deliver()

    charge.apply_async(("42",), task_id=result.id)
    desk.deliver()

    assert desk.ran == ["42"]


def test_a_copy_that_waits_behind_the_failure_runs(desk: Desk) -> None:
    # Given a body that fails, And a copy of its message that came to wait behind it meanwhile

    @desk.locked(
        "order:{order}",
        name="charge",
        on_contention="queue",
        acks_late=True,
        acks_on_failure_or_timeout=False,
    )
    def charge(order: str) -> str:
        desk.ran.append(order)
        if len(desk.ran) == 1:
            charge.apply_async((order,), task_id="one")
            assert desk.deliver().acknowledged
            raise ValueError(order)
        return "charged"

    charge.apply_async(("42",), task_id="one")
    desk.deliver()

    desk.deliver()
    assert desk.result("one").get() == "charged"
    assert nothing_is_left(desk)


@pytest.mark.parametrize("policy", ["fail", InTheQueue(max_waiting=1)], ids=repr)
def test_nor_is_it_the_end_where_the_task_failed_for_its_key(desk: Desk, policy: Any) -> None:
    # Given a task that fails because its key is taken, and its queue is full if it has one
    desk.ran += ["", ""]
    charge = failing(desk, on_contention=policy, acks_on_failure_or_timeout=False)
    with lock("order:42", app=desk.app, timeout=0):
        charge.apply_async(("42",), task_id="first")
        charge.apply_async(("42",), task_id="second")
        desk.deliver()
        assert desk.deliver()._state == "REJECTED"
    assert desk.result("second").state == "FAILURE"
    desk.deliver_all()

    charge.apply_async(("42",), task_id="second")
    desk.deliver()

    assert desk.result("second").state == "SUCCESS"


@pytest.fixture
def dead_lettering(rabbitmq_server: RabbitMQServer, tmp_path: Path, policy: str) -> Iterator[Lab]:
    """A lab whose broker delivers again what was rejected, a tenth of a second later."""
    broker = over_rabbitmq(rabbitmq_server.url)
    work = broker["task_default_queue"]
    later = f"{work}-later"
    to_later = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": later}
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
    with Connection(rabbitmq_server.url) as connection:
        arguments = {**back, "x-message-ttl": 100}
        Queue(later, queue_arguments=arguments, channel=connection.default_channel).declare()
    config = {
        **broker,
        **kept_in_sqlite(tmp_path),
        "worker_enable_remote_control": True,
        "task_queues": {work: {"queue_arguments": to_later}},
    }
    task = {"acks_late": True, "acks_on_failure_or_timeout": False}
    lab = Lab(tmp_path, {"celery": config, "lock": {"policy": policy}, "task": task})
    yield lab
    close(lab.app)


@pytest.mark.server("rabbitmq")
@pytest.mark.parametrize("policy", ["reschedule", "queue and keep"])
def test_over_a_dead_letter_exchange_a_locked_task_is_tried_as_often_as_a_plain_one(
    dead_lettering: Lab,
) -> None:
    lab = dead_lettering
    with lab.worker("prefork", concurrency=2) as worker:
        plain = lab.app.tasks["third time plainly"].delay("plain")
        locked = lab.app.tasks["third time"].delay("42")
        for order in ("plain", "42"):
            lab.journal.wait_for("start", count=3, order=order)
        under_way = lab.app.control.inspect().active
        until("both are acknowledged", lambda: not any((under_way() or {"": [""]}).values()))
        worker.stop()

    assert (plain.state, plain.result) == (locked.state, locked.result) == ("SUCCESS", 3)
    assert len(lab.journal.read("start")) == 6
    assert lying_in(lab.app) == []
