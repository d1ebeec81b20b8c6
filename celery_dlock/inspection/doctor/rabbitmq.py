"""RabbitMQ: whether queues and messages outlive it, and how long a task may take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding, asked, listed
from celery_dlock.inspection.doctor.locked import Locked

#: Seconds, RabbitMQ's own default since 3.8.17.
CONSUMER_TIMEOUT = 1800.0

_TIMEOUT = "x-consumer-timeout"

#: The first that has this of a queue; those before it take the argument, and do not heed it.
_PER_QUEUE = (3, 12)

#: How messages that outlive a restart are sent, as it may be written.
_LASTING = (2, "persistent")


def examine_rabbitmq(
    case: Case, tasks: Sequence[Locked], connection: Any, where: str
) -> Iterator[Finding]:
    """What AMQP lets us see, and what Celery is told to ask for."""
    queues = list(case.app.amqp.queues.values())
    yield from _lasting(case, queues, where)
    yield from _confirmed(case, where)
    yield from asked(where, _asked(tasks, queues, connection, where))


def _asked(
    tasks: Sequence[Locked], queues: Sequence[Any], connection: Any, where: str
) -> Iterator[Finding]:
    server: Any = connection.connect()
    yield from patient(tasks, queues, str(server.server_properties.get("version", "")), where)


def _lasting(case: Case, queues: Sequence[Any], where: str) -> Iterator[Finding]:
    passing = {queue.name: _why(queue) for queue in queues if _why(queue)}
    if passing:
        yield Finding(
            "rabbitmq-queue",
            "broken",
            where,
            promise="Messages are lost with their queue: those tasks never run.",
            found="; ".join(f"queue {name} is {why}" for name, why in sorted(passing.items())),
            mend="leave that to Queue's defaults in task_queues, and delete the old queue once "
            "it is empty",
        )
    transient = [queue.name for queue in queues if _mode(case, queue) not in _LASTING]
    if transient:
        yield Finding(
            "rabbitmq-transient",
            "broken",
            where,
            promise="A restart of the broker loses the messages: those tasks never run.",
            found=f"messages for {listed(transient)} are transient",
            mend="task_default_delivery_mode = 'persistent', and no other delivery_mode of an "
            "Exchange in task_queues",
        )


def _why(queue: Any) -> str:
    if not queue.durable:
        return "not durable"
    if queue.no_ack:
        return "no_ack: a message is gone as soon as a worker is sent it"
    # One that is exclusive is so as well.
    return "auto_delete: gone with its last worker" if queue.auto_delete else ""


def _mode(case: Case, queue: Any) -> Any:
    """How durably Celery sends what is for *queue*."""
    return queue.exchange.delivery_mode or case.conf.task_default_delivery_mode


def _confirmed(case: Case, where: str) -> Iterator[Finding]:
    if not (case.conf.broker_transport_options or {}).get("confirm_publish"):
        yield Finding(
            "rabbitmq-confirms",
            "weak",
            where,
            promise="A message that is published as the connection breaks, or the broker ends, is "
            "lost without an error: also one that is put off or woken.",
            found="confirm_publish is not set",
            mend='broker_transport_options = {"confirm_publish": True}',
        )


def patient(
    tasks: Sequence[Locked], queues: Sequence[Any], version: str, where: str
) -> Iterator[Finding]:
    """RabbitMQ closes the channel of a worker that has not acknowledged a message in time."""
    told = [(q.queue_arguments or {}).get(_TIMEOUT) for q in queues]
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    known = bool(told) and all(told) and number >= _PER_QUEUE
    least = min(float(t) / 1000 for t in told if t) if known else CONSUMER_TIMEOUT
    kept = {t.name: max(t.countdown, (t.late and t.longest) or 0.0) for t in tasks}
    long = {name: seconds for name, seconds in kept.items() if seconds >= least}
    if not long:
        return
    longest = max(long.values())
    if known:
        found = f"{_TIMEOUT} allows {least:g} s, {listed(long)} may run or wait for {longest:g} s"
    else:
        found = (
            f"{listed(long)} may run or wait for {longest:g} s, and a server allows {least:g} s "
            "unless its consumer_timeout is set, which AMQP does not tell"
        )
    yield Finding(
        "rabbitmq-consumer-timeout",
        "weak" if known else "unknown",
        where,
        promise="The worker's channel is closed while the task runs, or waits for its retry: all "
        "its messages are delivered again.",
        found=found,
        mend=f"consumer_timeout = {int(2000 * longest)} in rabbitmq.conf (milliseconds); for a new "
        f"queue on RabbitMQ 3.12 or later, queue_arguments={{'{_TIMEOUT}': {int(2000 * longest)}}}",
    )
