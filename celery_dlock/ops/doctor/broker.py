"""The broker: whether it keeps messages, how long it waits for an answer, and how long a task
may take and wait. Of RabbitMQ also whether queues and messages outlive it, and of Amazon SQS what
its queues were created with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from amqp.exceptions import NotFound

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.messages.countdown import remembered, visibility_timeout
from celery_dlock.messages.woken_queues import WokenQueues
from celery_dlock.ops.doctor.finding import (
    Broken,
    Case,
    Checks,
    Finding,
    Unknown,
    Weak,
    asked,
    broker_url,
    judged,
    listed,
    place_of,
)
from celery_dlock.ops.doctor.tasks import Locked
from celery_dlock.ops.overview import messages_of_other_brokers
from celery_dlock.runtime import runtime

#: Seconds for a broker to be connected to.
BROKER_TIMEOUT = 5

#: To which Celery publishes what has a countdown; workers declare it as they start.
DELAYS = "celery_delayed_27"

#: The first RabbitMQ that has a limit of deliveries where none is set, and that limit.
_LIMITED, _USUAL_LIMIT = (4,), 20

#: Seconds, RabbitMQ's own default since 3.8.17.
CONSUMER_TIMEOUT = 1800.0

#: The first that has one of a queue; those before it take the argument, and do not heed it.
_PER_QUEUE = (3, 12)

#: The kinds of transports that are read.
READ = ("redis", "amqp", "sqs", "filesystem", "memory")

#: What lets a queue be declared, by the kinds of transports that may refuse it.
_DECLARING = {
    "amqp": "the permission to configure it (rabbitmqctl set_permissions), with the arguments that "
    "it has there",
    "sqs": "sqs:CreateQueue; with predefined_queues, name the queue there",
}

#: How messages that outlive a restart are sent, as it may be written.
_LASTING = (2, "persistent")


def _long(seconds: Mapping[str, float], limit: float) -> Mapping[str, Any]:
    """The tasks of *seconds* that take no less than *limit*, and twice the longest."""
    long = {name: length for name, length in seconds.items() if length >= limit}
    longest = max(long.values(), default=0.0)
    figures = {"limit": limit, "longest": longest, "twice": 2 * longest, "ms": int(2000 * longest)}
    return {"names": listed(long), **figures} if long else {}


@dataclass(frozen=True)
class RabbitMQ:
    """What Celery asks of a RabbitMQ's *queues*, and what the server tells once it is asked."""

    conf: Any
    tasks: Sequence[Locked]
    queues: Sequence[Any]
    connection: Any

    @cached_property
    def server(self) -> Any:
        """A connection of py-amqp's."""
        return self.connection.connect()

    @property
    def version(self) -> tuple[int, ...]:
        version = str(self.server.server_properties.get("version", ""))
        return tuple(map(int, re.findall(r"\d+", version)))

    @property
    def quorum(self) -> Sequence[Any]:
        """The quorum queues."""
        return [q for q in self.queues if (q.queue_arguments or {}).get("x-queue-type") == "quorum"]

    @property
    def held(self) -> Sequence[str]:
        """The names of the queues with whose messages a worker waits for a countdown."""
        direct = [queue.name for queue in self.queues if queue.exchange.type == "direct"]
        return direct if self.quorum else [queue.name for queue in self.queues]

    @property
    def waits(self) -> bool:
        """Whether messages wait for a countdown in RabbitMQ."""
        return bool(self.quorum) and len(self.held) < len(self.queues)

    @property
    def timeout(self) -> float | None:
        """The least number of seconds that a queue allows a worker; ``None`` if not known."""
        given: list[Any] = [
            (q.queue_arguments or {}).get("x-consumer-timeout") for q in self.queues
        ]
        heeded = given and all(given) and self.version >= _PER_QUEUE
        return min(float(milliseconds) / 1000 for milliseconds in given) if heeded else None

    @property
    def long(self) -> Mapping[str, Any]:
        """The tasks whose messages a worker does not acknowledge in time."""
        waits = 1 if self.held else 0  # else RabbitMQ waits, and has the message
        kept = {t.name: max(waits * t.countdown, t.late and t.longest) for t in self.tasks}
        return _long(kept, self.timeout or CONSUMER_TIMEOUT)

    def limits(self) -> str:
        """The queues that drop messages, and after how many deliveries."""
        usual = _USUAL_LIMIT if self.version >= _LIMITED else -1
        dropping = [q for q in self.quorum if "x-dead-letter-exchange" not in q.queue_arguments]
        limits = {q.name: int(q.queue_arguments.get("x-delivery-limit", usual)) for q in dropping}
        return "; ".join(f"{name}: {n} deliveries" for name, n in sorted(limits.items()) if n >= 0)

    def has_delays(self) -> bool:
        """Whether what has a countdown can be published."""
        try:
            self.server.channel().exchange_declare(DELAYS, "topic", passive=True)
        except NotFound:
            return False
        return True


def _lost(queue: Any) -> str:
    """Why *queue* does not keep its messages, if it does not."""
    if not queue.durable:
        return f"queue {queue.name} is not durable"
    if queue.no_ack:
        return f"queue {queue.name} is no_ack: a message is gone as soon as it is sent to a worker"
    if queue.auto_delete:  # as one that is exclusive is, too
        return f"queue {queue.name} is auto_delete: gone with its last worker"
    return ""


_CLOSED = (
    "The worker's channel is closed while the task runs, or waits for its retry: all its messages "
    "are delivered again.",
    "consumer_timeout = {0[ms]} in rabbitmq.conf (milliseconds); for a new queue on RabbitMQ 3.12 "
    "or later, queue_arguments={{'x-consumer-timeout': {0[ms]}}}",
)

#: First what Celery is told to ask for, then what the server tells.
RABBITMQ: Checks[RabbitMQ] = {
    "rabbitmq-queue": Broken(
        lambda rabbitmq: "; ".join(sorted(filter(None, map(_lost, rabbitmq.queues)))),
        "{}",
        promise="Messages are lost with their queue: those tasks never run.",
        fix="use Queue's defaults for that in task_queues, and delete the old queue once it is "
        "empty",
    ),
    "rabbitmq-transient": Broken(
        lambda rabbitmq: listed(
            queue.name
            for queue in rabbitmq.queues
            if (queue.exchange.delivery_mode or rabbitmq.conf.task_default_delivery_mode)
            not in _LASTING
        ),
        "messages for {} are transient",
        promise="A restart of the broker loses the messages: those tasks never run.",
        fix="task_default_delivery_mode = 'persistent', and no other delivery_mode of an Exchange "
        "in task_queues",
    ),
    "rabbitmq-confirms": Weak(
        lambda rabbitmq: not (rabbitmq.conf.broker_transport_options or {}).get("confirm_publish"),
        "confirm_publish is not set",
        promise="A message that is published while the connection breaks or the broker ends is "
        "lost without an error, also one that is rescheduled or woken.",
        fix='broker_transport_options = {{"confirm_publish": True}}',
    ),
    # With a quorum queue a worker cannot ask for more than its share, whatever the others are.
    "rabbitmq-direct": Weak(
        lambda rabbitmq: rabbitmq.quorum and listed(rabbitmq.held),
        "there are quorum queues, and the exchange of {} is direct",
        promise="A rescheduled task, or a retry, occupies one of its worker's prefetched messages "
        "until it is due: with enough of them the worker does nothing else.",
        fix='Exchange("another name", type="topic") for each queue, or task_default_exchange and '
        "task_default_exchange_type where task_queues has none",
    ),
    "rabbitmq-delay-queues": Weak(
        lambda rabbitmq: (
            rabbitmq.waits
            and (kind := rabbitmq.conf.broker_native_delayed_delivery_queue_type) != "quorum"
            and str(kind)
        ),
        "broker_native_delayed_delivery_queue_type is {}",
        promise="If RabbitMQ ends or loses a node while it moves a message with a countdown from "
        "one queue to the next, the message is lost: that task never runs.",
        fix='broker_native_delayed_delivery_queue_type = "quorum", once the queues '
        "celery_delayed_0 to celery_delayed_27 are empty and deleted",
    ),
    "rabbitmq-consumer-timeout": (
        Weak(
            lambda rabbitmq: rabbitmq.timeout and rabbitmq.long,
            "x-consumer-timeout allows {0[limit]:g} s, {0[names]} may run or wait for "
            "{0[longest]:g} s",
            *_CLOSED,
        ),
        Unknown(
            lambda rabbitmq: not rabbitmq.timeout and rabbitmq.long,
            "{0[names]} may run or wait for {0[longest]:g} s, and a server allows {0[limit]:g} s "
            "unless its consumer_timeout is set, which AMQP does not show",
            *_CLOSED,
        ),
    ),
    "rabbitmq-delivery-limit": Weak(
        RabbitMQ.limits,
        "{}, and no x-dead-letter-exchange",
        promise="A message is dropped, and its task never runs, after so many deliveries: its "
        "workers were killed, or it could not be rescheduled because the broker accepted no "
        "messages.",
        fix="x-dead-letter-exchange in queue_arguments of a new queue or in a policy (which AMQP "
        "does not show), or x-delivery-limit = -1",
    ),
    "rabbitmq-no-delay": Weak(
        lambda rabbitmq: rabbitmq.waits and not rabbitmq.has_delays() and DELAYS,
        "there is no exchange {}: no worker with quorum queues has started yet",
        promise="A message with a countdown is refused, or lost without confirm_publish.",
        fix="start the workers, with these task_queues, before the publishers",
    ),
}


#: Of tasks whose messages come again, and whether they run or wait meanwhile.
VISIBILITY: Checks[Mapping[str, Any]] = {
    "broker-visibility-timeout": Weak(
        lambda long: "names" in long and long,
        "visibility_timeout = {0[limit]:g}; {0[names]} may {0[what]} {0[longest]:g} s",
        promise="A message is delivered again and again while its task still runs or waits. Each "
        "duplicate is rescheduled, and dropped in the end.",
        fix='broker_transport_options = {{"visibility_timeout": {0[twice]:g}}}{0[also]}',
    )
}

#: Of the queues of an Amazon SQS whose attribute is not what Celery is told.
SQS: Checks[str] = {
    "sqs-visibility-timeout": Weak(
        lambda differing: differing,
        "{}",
        promise="The queue's own counts. If it is shorter, a message is delivered again while its "
        "task runs or waits; if it is longer, a finished task is forgotten while a duplicate of it "
        "can still be delivered: it runs again.",
        fix="broker_transport_options with the visibility_timeout of the queues, or give them the "
        "attribute VisibilityTimeout that the option says",
    )
}

_BEHIND_ALL = (
    "A woken task waits behind all messages that were published meanwhile, and its key is idle as "
    "long."
)

#: Of the tasks whose messages wait in the store for one other broker than ours.
STRANGERS: Checks[Mapping[str, str]] = {
    "broker-another": Weak(
        lambda messages: messages,
        "{0[names]} in the lock store, for {0[theirs]}; here it is {0[ours]}",
        promise="These messages wait until a worker runs at their own broker. If that broker no "
        "longer has workers, they never run.",
        fix="run a worker there; or, if it is this broker under another address, "
        "dlock_broker = {0[theirs]!r} in all processes",
    )
}


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, to which a *driver* of kombu's speaks; *tasks* are the locked ones."""

    case: Case
    tasks: Sequence[Locked]
    scheme: str
    driver: str

    @property
    def check(self) -> str:
        """What a person has to look at where we do not."""
        is_redis = self.scheme.startswith(("sentinel", "redis"))
        settings = "appendonly yes and maxmemory-policy noeviction" if is_redis else "how it stores"
        return f"its server: {settings}"

    def forgets(self) -> Mapping[str, float]:
        """How long finished tasks are known, if that is not twice the visibility timeout."""
        visible = visibility_timeout(self.case.app)
        done = remembered(self.case.app, self.case.settings.done_ttl)
        figures = {"done": done, "visible": visible, "twice": 2 * visible}
        return figures if done < 2 * visible < math.inf else {}

    def without_woken_queue(self) -> str:
        """The queues whose woken messages go to their end, though that could be otherwise."""
        queues = WokenQueues(self.case.app)
        lasting = [q for q in self.case.app.amqp.queues.values() if not q.auto_delete]
        why = {queue.name: reason for queue in lasting if (reason := queues.why_not(queue))}
        return "; ".join(f"beside {name} there is no queue: {why[name]}" for name in why)


#: Of why queues for woken messages are not declared, and what would allow it.
UNDECLARED: Checks[tuple[str, str]] = {
    "broker-woken-queue": Weak(
        lambda refused: refused[0] and refused,
        "{0[0]}",
        promise=_BEHIND_ALL,
        fix="allow {0[1]}",
    )
}

BROKER: Checks[Broker] = {
    "broker-done-ttl": Broken(
        Broker.forgets,
        "dlock_done_ttl = {0[done]:g}, and visibility_timeout = {0[visible]:g}",
        promise="A finished task is forgotten while a duplicate of it can still be delivered: it "
        "runs again.",
        fix="dlock_done_ttl = {0[twice]:g} or more",
    ),
    "broker-woken-queue": Weak(
        Broker.without_woken_queue,
        "{}",
        promise=_BEHIND_ALL,
        fix="declare it in task_queues, like that queue",
    ),
    "broker-filesystem": Weak(
        lambda broker: (
            broker.driver == "filesystem" and listed(t.name for t in broker.tasks if not t.kept)
        ),
        "the filesystem transport; {} may be lost",
        promise="Messages that a killed worker had taken are not delivered again: those tasks "
        "never run.",
        fix="on_contention=Queue(keep=True), or a broker with a server",
    ),
    "broker-memory": Weak(
        lambda broker: broker.driver == "memory",
        "the memory transport",
        promise="Only this process gets its messages, and they end with it.",
        fix="broker_url = 'amqp://…' or 'redis://…'",
    ),
    "broker-unread": Unknown(
        lambda broker: broker.driver not in READ and broker,
        "the doctor does not read a broker at {0.scheme}://",
        promise="It is not known whether the broker keeps its messages through a restart.",
        fix="check {0.check}",
    ),
}


def examine_broker(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    """All that concerns the broker of *case*, whose locked tasks are *tasks*."""
    with case.app.connection_for_read(connect_timeout=BROKER_TIMEOUT) as connection:
        url = broker_url(case.conf)
        scheme = url.partition("://")[0]
        place = f"broker {scheme}://{place_of(url)}"
        yield from _delivered_again(case, tasks, place)
        yield from _for_others(case, place)
        driver = connection.transport.driver_type
        if driver == "redis" and scheme not in ("redis", "rediss"):
            driver = ""  # behind Sentinels, or at a socket
        yield from judged(BROKER, Broker(case, tasks, scheme, driver), place)
        of_server: Iterator[Finding] = iter(())
        if driver == "redis":
            # The driver need not be there for other brokers.
            from celery_dlock.ops.doctor.redis import examine_redis_broker

            of_server = examine_redis_broker(case, url, place)
        elif driver == "amqp":
            queues = list(case.app.amqp.queues.values())
            rabbitmq = RabbitMQ(case.conf, tasks, queues, connection)
            of_server = judged(RABBITMQ, rabbitmq, place)
        elif driver == "sqs":
            of_server = examine_sqs(case, connection, place)
        yield from asked(place, chain(of_server, _undeclared(case, connection, driver, place)))


def examine_sqs(case: Case, connection: Any, place: str) -> Iterator[Finding]:
    """An Amazon SQS: nothing that Celery is told changes a queue that exists."""
    told = visibility_timeout(case.app)
    names = [*case.app.amqp.queues, *(queue.name for queue in _beside(case).values())]
    with connection.channel() as channel:
        kept = {name: _visible(channel, name) for name in names}
    differing = [
        f"{name}: VisibilityTimeout {seconds:g}"
        for name, seconds in kept.items()
        if seconds not in (None, told)
    ]
    found = f"{'; '.join(differing)}; visibility_timeout = {told:g}" if differing else ""
    yield from judged(SQS, found, place)


def _visible(channel: Any, queue: str) -> float | None:
    """For how many seconds nobody else sees a message of *queue*; ``None`` if it is not there."""
    name = channel.canonical_queue_name(queue)
    predefined = channel.predefined_queues
    if predefined and name not in predefined:
        return None
    client = channel.sqs(queue=name)
    try:
        url = (
            predefined[name]["url"]
            if predefined
            else client.get_queue_url(QueueName=name)["QueueUrl"]
        )
        reply = client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
    except client.exceptions.QueueDoesNotExist:
        return None
    return float(reply["Attributes"]["VisibilityTimeout"])


def _undeclared(case: Case, connection: Any, driver: str, place: str) -> Iterator[Finding]:
    """Declare the queues for woken messages, as workers and publishers do before they use them.

    To look whether they are there says less: a worker that may not declare one does not use it.
    """
    if case.read_only or driver not in _DECLARING:
        return
    refused = [
        f"{queue.name} beside {home} cannot be declared: {why}"
        for home, queue in _beside(case).items()
        if (why := _refusal(queue, connection))
    ]
    yield from judged(UNDECLARED, ("; ".join(refused), _DECLARING[driver]), place)


def _beside(case: Case) -> Mapping[str, Any]:
    """The queues for woken messages, by the name of the queue that each is beside."""
    woken = WokenQueues(case.app)
    beside = {home.name: woken.beside(home) for home in list(case.app.amqp.queues.values())}
    return {home: queue for home, queue in beside.items() if queue is not None}


def _refusal(queue: Any, connection: Any) -> str:
    """Why the broker does not let *queue* be declared, if it does not."""
    try:
        # A broker that refuses something closes the channel.
        with connection.channel() as channel:
            queue(channel).declare()
    except connection.recoverable_connection_errors:
        raise
    except Exception as exc:  # each transport has errors of its own
        return f"{exc}"
    return ""


def _delivered_again(case: Case, tasks: Sequence[Locked], place: str) -> Iterator[Finding]:
    visible = visibility_timeout(case.app)
    # What is acknowledged early is not delivered again while it runs.
    runs = _long({task.name: task.longest for task in tasks if task.late}, visible)
    waits = _long({task.name: task.countdown for task in tasks}, visible)
    is_sqs = broker_url(case.conf).startswith("sqs")
    also = ", and the same as VisibilityTimeout of queues that exist" if is_sqs else ""
    for what, long in (("run for", runs), ("retry after", waits)):
        yield from judged(VISIBILITY, {**long, "what": what, "also": also}, place)


def _for_others(case: Case, place: str) -> Iterator[Finding]:
    try:
        messages = sorted(messages_of_other_brokers(case.app), key=attrgetter("broker"))
    except (BackendUnavailable, ConfigurationError):
        return  # which is said of the store
    ours = runtime(case.app).wake.broker
    for theirs, waiting in groupby(messages, key=attrgetter("broker")):
        names = listed(message.task_id for message in waiting)
        yield from judged(STRANGERS, {"names": names, "theirs": theirs, "ours": ours}, place)
