"""The broker: whether it keeps messages, how long it waits for an answer, and how long a task
may take and wait. Of RabbitMQ also whether queues and messages outlive it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from amqp.exceptions import NotFound

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.messages.countdown import remembered, visibility_timeout
from celery_dlock.messages.woken_queues import WokenQueues
from celery_dlock.ops.doctor.finding import Case, Finding, asked, broker_url, listed, place_of
from celery_dlock.ops.doctor.tasks import Locked
from celery_dlock.ops.overview import messages_of_other_brokers
from celery_dlock.runtime import runtime

#: To which Celery publishes what has a countdown; workers declare it as they start.
DELAYS = "celery_delayed_27"

_LIMIT = "x-delivery-limit"

#: The first that has a limit where none is set, and that limit.
_LIMITED, _USUAL_LIMIT = 4, 20


def _quorum_queues(queues: Sequence[Any]) -> list[Any]:
    """Those of *queues* that are."""
    return [q for q in queues if (q.queue_arguments or {}).get("x-queue-type") == "quorum"]


def _waits_in_worker(queues: Sequence[Any]) -> list[str]:
    """The names of those with whose messages a worker waits for a countdown."""
    if not _quorum_queues(queues):
        return [queue.name for queue in queues]
    return [queue.name for queue in queues if queue.exchange.type == "direct"]


def _direct(queues: Sequence[Any], where: str) -> Iterator[Finding]:
    """With a quorum queue a worker cannot ask for more than its share, whatever the others are."""
    held = _waits_in_worker(queues)
    if _quorum_queues(queues) and held:
        yield Finding(
            "rabbitmq-direct",
            "weak",
            where,
            promise="A rescheduled task, or a retry, occupies one of its worker's prefetched "
            "messages until it is due: with enough of them the worker does nothing else.",
            found=f"there are quorum queues, and the exchange of {listed(held)} is direct",
            fix='Exchange("another name", type="topic") for each queue, or '
            "task_default_exchange and task_default_exchange_type where task_queues has none",
        )


def _passing(queues: Sequence[Any], kind: str, where: str) -> Iterator[Finding]:
    """Whether a message is safe while it waits, in queues of Celery's own of this *kind*."""
    if kind != "quorum" and _rabbitmq_waits(queues):
        yield Finding(
            "rabbitmq-delay-queues",
            "weak",
            where,
            promise="If RabbitMQ ends or loses a node while it moves a message with a countdown "
            "from one queue to the next, the message is lost: that task never runs.",
            found=f"broker_native_delayed_delivery_queue_type is {kind}",
            fix='broker_native_delayed_delivery_queue_type = "quorum", once the queues '
            "celery_delayed_0 to celery_delayed_27 are empty and deleted",
        )


def _rabbitmq_waits(queues: Sequence[Any]) -> bool:
    return bool(_quorum_queues(queues)) and len(_waits_in_worker(queues)) < len(queues)


def _delayed(queues: Sequence[Any], server: Any, where: str) -> Iterator[Finding]:
    """Whether what has a countdown can be published. *server* is a connection of py-amqp's."""
    if not _rabbitmq_waits(queues):
        return
    try:
        server.channel().exchange_declare(DELAYS, "topic", passive=True)
    except NotFound:
        yield Finding(
            "rabbitmq-no-delay",
            "weak",
            where,
            promise="A message with a countdown is refused, or lost without confirm_publish.",
            found=f"there is no exchange {DELAYS}: no worker with quorum queues has started yet",
            fix="start the workers, with these task_queues, before the publishers",
        )


def delivered(queues: Sequence[Any], version: str, where: str) -> Iterator[Finding]:
    """How often a message may come before the queue gives it up."""
    number = int((re.findall(r"\d+", version) or ["0"])[0])
    usual = _USUAL_LIMIT if number >= _LIMITED else -1
    limits = {queue.name: _limit(queue, usual) for queue in _quorum_queues(queues)}
    told = {name: limit for name, limit in limits.items() if limit >= 0}
    if told:
        yield Finding(
            "rabbitmq-delivery-limit",
            "weak",
            where,
            promise="A message is dropped, and its task never runs, after so many deliveries: its "
            "workers were killed, or it could not be rescheduled because the broker accepted no "
            "messages.",
            found="; ".join(f"{name}: {limit} deliveries" for name, limit in sorted(told.items()))
            + ", and no x-dead-letter-exchange",
            fix=f"x-dead-letter-exchange in queue_arguments of a new queue or in a policy (which "
            f"AMQP does not show), or {_LIMIT} = -1",
        )


def _limit(queue: Any, usual: int) -> int:
    arguments = queue.queue_arguments or {}
    return -1 if "x-dead-letter-exchange" in arguments else int(arguments.get(_LIMIT, usual))


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
    yield from _direct(queues, where)
    yield from _passing(queues, case.conf.broker_native_delayed_delivery_queue_type, where)
    yield from asked(where, _asked(tasks, queues, connection, where))


def _asked(
    tasks: Sequence[Locked], queues: Sequence[Any], connection: Any, where: str
) -> Iterator[Finding]:
    server: Any = connection.connect()
    version = str(server.server_properties.get("version", ""))
    yield from patient(tasks, queues, version, where)
    yield from delivered(queues, version, where)
    yield from _delayed(queues, server, where)


def _lasting(case: Case, queues: Sequence[Any], where: str) -> Iterator[Finding]:
    passing = {queue.name: _why(queue) for queue in queues if _why(queue)}
    if passing:
        yield Finding(
            "rabbitmq-queue",
            "broken",
            where,
            promise="Messages are lost with their queue: those tasks never run.",
            found="; ".join(f"queue {name} is {why}" for name, why in sorted(passing.items())),
            fix="use Queue's defaults for that in task_queues, and delete the old queue once it is "
            "empty",
        )
    transient = [queue.name for queue in queues if _mode(case, queue) not in _LASTING]
    if transient:
        yield Finding(
            "rabbitmq-transient",
            "broken",
            where,
            promise="A restart of the broker loses the messages: those tasks never run.",
            found=f"messages for {listed(transient)} are transient",
            fix="task_default_delivery_mode = 'persistent', and no other delivery_mode of an "
            "Exchange in task_queues",
        )


def _why(queue: Any) -> str:
    if not queue.durable:
        return "not durable"
    if queue.no_ack:
        return "no_ack: a message is gone as soon as it is sent to a worker"
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
            promise="A message that is published while the connection breaks or the broker ends is "
            "lost without an error, also one that is rescheduled or woken.",
            found="confirm_publish is not set",
            fix='broker_transport_options = {"confirm_publish": True}',
        )


def patient(
    tasks: Sequence[Locked], queues: Sequence[Any], version: str, where: str
) -> Iterator[Finding]:
    """RabbitMQ closes the channel of a worker that has not acknowledged a message in time."""
    told = [(q.queue_arguments or {}).get(_TIMEOUT) for q in queues]
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    known = bool(told) and all(told) and number >= _PER_QUEUE
    least = min(float(t) / 1000 for t in told if t) if known else CONSUMER_TIMEOUT
    waits = 1 if _waits_in_worker(queues) else 0  # else RabbitMQ waits, and has the message
    kept = {t.name: max(waits * t.countdown, (t.late and t.longest) or 0.0) for t in tasks}
    long = {name: seconds for name, seconds in kept.items() if seconds >= least}
    if not long:
        return
    longest = max(long.values())
    if known:
        found = f"{_TIMEOUT} allows {least:g} s, {listed(long)} may run or wait for {longest:g} s"
    else:
        found = (
            f"{listed(long)} may run or wait for {longest:g} s, and a server allows {least:g} s "
            "unless its consumer_timeout is set, which AMQP does not show"
        )
    yield Finding(
        "rabbitmq-consumer-timeout",
        "weak" if known else "unknown",
        where,
        promise="The worker's channel is closed while the task runs, or waits for its retry: all "
        "its messages are delivered again.",
        found=found,
        fix=f"consumer_timeout = {int(2000 * longest)} in rabbitmq.conf (milliseconds); for a new "
        f"queue on RabbitMQ 3.12 or later, queue_arguments={{'{_TIMEOUT}': {int(2000 * longest)}}}",
    )


#: Seconds for a broker to be connected to.
BROKER_TIMEOUT = 5


def examine_broker(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    """All that concerns the broker of *case*, whose locked tasks are *tasks*."""
    with case.app.connection_for_read(connect_timeout=BROKER_TIMEOUT) as connection:
        url = broker_url(case.conf)
        scheme = url.partition("://")[0]
        where = f"broker {scheme}://{place_of(url)}"
        yield from _delivered_again(case, tasks, where)
        yield from _of_another(case, where)
        yield from _without_woken_queue(case, where)
        match connection.transport.driver_type:
            case "redis" if scheme in ("redis", "rediss"):
                # The driver need not be there for other brokers.
                from celery_dlock.ops.doctor.redis import examine_redis_broker

                yield from asked(where, examine_redis_broker(case, url, where))
            case "amqp":
                yield from examine_rabbitmq(case, tasks, connection, where)
            case "filesystem":
                yield from _files(tasks, where)
            case "memory":
                yield from _memory(where)
            case _:
                yield from _unread(scheme, where)


def _of_another(case: Case, where: str) -> Iterator[Finding]:
    """Messages that wait and that no process of this application will publish."""
    try:
        found = list(messages_of_other_brokers(case.app))
    except (BackendUnavailable, ConfigurationError):
        return  # which is said of the store
    for broker in sorted({each.broker for each in found}):
        theirs = [each for each in found if each.broker == broker]
        yield Finding(
            "broker-another",
            "weak",
            where,
            promise="These messages wait until a worker runs at their own broker. If that broker "
            "no longer has workers, they never run.",
            found=f"{listed(each.task_id for each in theirs)} in the lock store, for {broker}; "
            f"here it is {runtime(case.app).wake.broker}",
            fix=f"run a worker there; or, if it is this broker under another address, "
            f"dlock_broker = {broker!r} in all processes",
        )


def _without_woken_queue(case: Case, where: str) -> Iterator[Finding]:
    """Queues whose woken messages go to their end, though that could be otherwise."""
    queues = WokenQueues(case.app, has=case.settings.woken_queue)
    lasting = [queue for queue in case.app.amqp.queues.values() if not queue.auto_delete]
    why = {queue.name: reason for queue in lasting if (reason := queues.why_not(queue))}
    if why:
        yield Finding(
            "broker-woken-queue",
            "weak",
            where,
            promise="A woken task waits behind all messages that were published meanwhile, and its "
            "key is idle as long.",
            found="; ".join(f"beside {name} there is no queue: {r}" for name, r in why.items()),
            fix="declare it in task_queues, like that queue",
        )


def _delivered_again(case: Case, tasks: Sequence[Locked], where: str) -> Iterator[Finding]:
    """What comes again because nobody has acknowledged it in time."""
    visible = visibility_timeout(case.app)
    if visible == math.inf:
        return
    yield from _too_long(tasks, visible, where)
    done = remembered(case.app, case.settings.done_ttl)
    if done < 2 * visible:
        yield Finding(
            "broker-done-ttl",
            "broken",
            where,
            promise="A finished task is forgotten while a duplicate of it can still be delivered: "
            "it runs again.",
            found=f"dlock_done_ttl = {done:g}, and visibility_timeout = {visible:g}",
            fix=f"dlock_done_ttl = {2 * visible:g} or more",
        )


def _too_long(tasks: Sequence[Locked], visible: float, where: str) -> Iterator[Finding]:
    # What is acknowledged early is not delivered again while it runs.
    runs = {t.name: t.longest for t in tasks if t.late and t.longest and t.longest >= visible}
    waits = {t.name: t.countdown for t in tasks if t.countdown >= visible}
    for what, found in (("may run for", runs), ("may retry after", waits)):
        if found:
            longest = max(found.values())
            yield Finding(
                "broker-visibility-timeout",
                "weak",
                where,
                promise="A message is delivered again and again while its task still runs or "
                "waits. Each duplicate is rescheduled, and dropped in the end.",
                found=f"visibility_timeout = {visible:g}; {listed(found)} {what} {longest:g} s",
                fix=f'broker_transport_options = {{"visibility_timeout": {2 * longest:g}}}',
            )


def _files(tasks: Sequence[Locked], where: str) -> Iterator[Finding]:
    lost = [task.name for task in tasks if not task.kept]
    if lost:
        yield Finding(
            "broker-filesystem",
            "weak",
            where,
            promise="Messages that a killed worker had taken are not delivered again: those tasks "
            "never run.",
            found=f"the filesystem transport; {listed(lost)} may be lost",
            fix="on_contention=Queue(keep=True), or a broker with a server",
        )


def _unread(scheme: str, where: str) -> Iterator[Finding]:
    yield Finding(
        "broker-unread",
        "unknown",
        where,
        promise="It is not known whether the broker keeps its messages through a restart.",
        found=f"the doctor does not read a broker at {scheme}://",
        fix="check its server; a Redis needs appendonly yes and maxmemory-policy noeviction",
    )


def _memory(where: str) -> Iterator[Finding]:
    yield Finding(
        "broker-memory",
        "weak",
        where,
        promise="Only this process gets its messages, and they end with it.",
        found="the memory transport",
        fix="broker_url = 'amqp://…' or 'redis://…'",
    )
