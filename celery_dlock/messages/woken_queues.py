"""The queue beside each queue of the broker, for the messages that are woken.

In the queue that it came from a woken message would wait behind all that was published meanwhile,
and its key would lie idle for as long. Brokers serve the queues of a worker by turns, so in one of
its own it waits behind woken messages only. It carries where it came from, which is what a worker
that takes it goes by: a retry, a reschedule and Celery itself see the queue that it came from.

A wake that nobody has answered is repeated to the queue that the message came from. So workers
that do not look at the queue beside it, of an earlier version or without the permission to declare
it, run what they are sent, seconds later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, cast

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from kombu.entity import Exchange
from kombu.exceptions import OperationalError

from celery_dlock.messages.headers import HISTORY
from celery_dlock.messages.way_back import goes_by_exchange, queues_reached

logger = logging.getLogger("celery_dlock")

#: How the name of such a queue ends.
_WOKEN = ".woken"

#: Amazon SQS tells by the end of a queue's name that it keeps the order.
_FIFO = ".fifo"

UNDECLARED = (
    "cannot declare the queue %s for woken messages (%r): they go to the end of %s, behind all "
    "that was published meanwhile. Allow it, or make the queue, and put it into task_queues with "
    "no_declare=True"
)


class WokenQueues:
    """Those of one app."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._declared: dict[str, bool] = {}
        self._twins: dict[str, tuple[Any, Any]] = {}
        self._logged: set[str] = set()

    def beside(self, queue: Any) -> Any:
        """The queue beside *queue*, declared like it; ``None`` where there is none."""
        if is_woken(queue.name) or self.why_not(queue):
            return None
        name = name_beside(queue.name)
        if name in self._app.amqp.queues:  # as the configuration has it
            return self._app.amqp.queues[name]
        origin, twin = self._twins.get(name, (None, None))
        if origin is not queue:
            twin, exchange = copy(queue), cast("Any", Exchange)
            twin.name = twin.routing_key = name
            twin.exchange, twin.bindings, twin.alias = exchange(""), set(), None
            self._twins[name] = (queue, twin)
        return twin

    def why_not(self, queue: Any) -> str | None:
        """Why *queue* can have none beside it, if it cannot."""
        queues, name = self._app.amqp.queues, name_beside(queue.name)
        if is_woken(queue.name):
            return None
        if queue.exchange is not None and queue.exchange.type == "fanout":
            return "each worker has a queue of its own"
        if queue.exclusive or queue.auto_delete:
            return "it is deleted with its worker"
        if name in queues:
            return None
        if self._by_exchange:
            return f"this broker needs an exchange for it, and task_queues has no {name}"
        if queue.no_declare:
            return f"it is not to be declared, and task_queues has no {name}"
        if not queues.create_missing:
            return f"task_create_missing_queues is off, and task_queues has no {name}"
        return None

    @cached_property
    def _by_exchange(self) -> bool:
        with self._app.connection_for_write() as connection:
            return goes_by_exchange(connection)

    def of_message(self, exchange: str, routing_key: str) -> Any:
        """The queue beside the only one to which a message goes by *exchange* and *routing_key*.

        ``None`` where that cannot be told, or there is none.
        """
        home = self._home(exchange, routing_key)
        return None if home is None else self.beside(home)

    def declare(self, queue: Any, connection: Any, home: str) -> bool | None:
        """Whether *queue*, which is beside *home*, can be declared over *connection*.

        ``None`` if that was not to be told now. A broker that does not allow it is said once.
        """
        # Where a transport does not say which errors pass, kombu takes also a refusal for one.
        passing = getattr(
            connection.transport, "recoverable_connection_errors", connection.connection_errors
        )
        try:
            with _channel_of(connection) as channel:
                queue(channel).declare()
        except SoftTimeLimitExceeded:
            raise
        except (OperationalError, *passing):
            return None
        except Exception as exc:
            if queue.name not in self._logged:
                self._logged.add(queue.name)
                logger.warning(UNDECLARED, queue.name, exc, home)
            return False
        return True

    def is_there(self, queue: Any, connection: Any, home: str) -> bool:
        """The same, and asked until it is known: for who publishes."""
        declared = self._declared.get(queue.name)
        if declared is None:
            declared = self.declare(queue, connection, home)
            if declared is None:
                return False
            self._declared[queue.name] = declared
        return declared

    def _home(self, exchange: str, routing_key: str) -> Any:
        queues = self._app.amqp.queues
        if exchange:
            homes = queues_reached(queues.values(), exchange, routing_key)
            return homes[0] if len(homes) == 1 else None
        if routing_key in queues:
            return queues[routing_key]
        return queues.new_missing(routing_key) if queues.create_missing and routing_key else None


def name_beside(queue: str) -> str:
    """The name of the queue beside *queue*."""
    stem = queue.removesuffix(_FIFO)
    return f"{stem}{_WOKEN}{queue[len(stem) :]}"


def is_woken(queue: str) -> bool:
    """Whether *queue* is the name of one beside another."""
    return queue.removesuffix(_FIFO).endswith(_WOKEN)


@contextmanager
def _channel_of(connection: Any) -> Iterator[Any]:
    """One of its own where a broker that refuses something closes the channel.

    Otherwise that of the connection: one that kombu 5.5 closes while its loop runs stops Redis'.
    """
    if connection.transport.driver_type != "amqp":
        yield connection.default_channel
        return
    with connection.channel() as channel:
        yield channel


def came_from(exchange: str, routing_key: str) -> dict[str, str]:
    """What goes into the header of a message that leaves the queue it came from."""
    return {"exchange": exchange, "routing_key": routing_key}


def tells_redelivery(app: Celery) -> bool:
    """Whether the broker says of every message that it delivers again that it does."""
    with app.connection_for_read() as connection:
        return connection.transport.driver_type in ("amqp", "redis")


def lead_home(message: Any) -> None:
    """Let *message*, as a worker receives it, say that it came from the queue it had left."""
    past = (message.headers or {}).get(HISTORY)
    if not isinstance(past, Mapping):
        return
    home = {name: past.get(name) for name in came_from("", "")}
    if all(isinstance(value, str) for value in home.values()):
        message.delivery_info = {**message.delivery_info, **home}
