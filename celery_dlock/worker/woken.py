"""The worker takes woken messages from the queues beside its own, and starts them by turns.

It does so for each queue that it consumes, from when it begins to until it stops: at its start, and
as ``add_consumer`` and ``cancel_consumer`` say. What comes from there says which queue it had left.

What a prefork worker has prefetched waits for a free slot, in one line, and a woken message would
stand at its end. So there are two lines, each in the order of arrival: when a slot is free, the
oldest woken message and the oldest other one go by turns, and where only one line has any, that
one. No line can starve the other, however many keys are hot. Other pools queue by themselves, and
have no such place.

From Redis messages are fetched by turns, too, whatever ``queue_order_strategy`` says: in a fixed
order of queues, woken messages would be fetched only when there are no others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Set
from typing import Any

from celery import bootsteps

from celery_dlock.messages.woken_queues import lead_home
from celery_dlock.runtime import runtime
from celery_dlock.worker.guard import Guard

logger = logging.getLogger("celery_dlock")


_NOT_BESIDE = "this worker may not consume the queue of woken messages"
_HOME_GUARD = Guard("a woken message does not name the queue that it came from")
_TURN_GUARD = Guard("a message waits for a slot behind those that were not woken")

NONE_BESIDE = (
    "woken messages of the queue %s go to its end, behind all that was published meanwhile: %s"
)


class ConsumeWoken(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of the consumer: it starts anew with each connection."""

    requires = frozenset({"celery.worker.consumer.tasks:Tasks"})

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._names: set[str] = set()
        self._logged: set[str] = set()
        self._guard = Guard(_NOT_BESIDE, parent.connection_errors)
        make_handler = parent.create_task_handler
        add, cancel = parent.add_task_queue, parent.cancel_task_queue

        def create_task_handler(*args: Any, **more: Any) -> Callable[[Any], Any]:
            return self._leading_home(make_handler(*args, **more))

        def add_task_queue(queue: str, *args: Any, **more: Any) -> None:
            add(queue, *args, **more)
            with self._guard:
                self._add(parent, parent.app.amqp.queues[queue])
                parent.task_consumer.consume()

        def cancel_task_queue(queue: str) -> None:
            home = parent.app.amqp.queues.get(queue)
            cancel(queue)
            with self._guard:
                beside = home and runtime(parent.app).wake.queues.beside(home)
                if beside is not None:
                    parent.task_consumer.cancel_by_queue(beside.name)

        parent.create_task_handler = create_task_handler
        parent.add_task_queue, parent.cancel_task_queue = add_task_queue, cancel_task_queue

    def start(self, parent: Any) -> None:
        for home in list(parent.task_consumer.queues):
            with self._guard:
                self._add(parent, home)
        with self._guard:
            fetch_by_turns(parent.task_consumer.channel, self._names)

    def _add(self, parent: Any, home: Any) -> None:
        """Before the consumer consumes: a queue that cannot be declared would end the worker."""
        queues = runtime(parent.app).wake.queues
        beside = queues.beside(home)
        if (reason := queues.why_not(home)) and home.name not in self._logged:
            self._logged.add(home.name)
            logger.info(NONE_BESIDE, home.name, reason)
        if beside is None or parent.task_consumer.consuming_from(beside.name):
            return
        if queues.declare(beside, parent.connection, home.name):
            parent.task_consumer.add_queue(beside)
            self._names.add(beside.name)
            logger.debug("woken messages come by %s", beside.name)

    def _leading_home(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handle_led_home(message: Any) -> Any:
            with _HOME_GUARD:
                if message.delivery_info.get("routing_key") in self._names:
                    lead_home(message)
            return handle(message)

        return handle_led_home


class FetchByTurns:
    """The *order* in which kombu asks Redis for the messages of queues, but for the *woken* ones.

    Of those it asks first, unless they had the last message.
    """

    def __init__(self, order: Any, woken: Set[str]) -> None:
        self._order = order
        self._woken = woken
        self._woken_first = True

    def update(self, queues: Iterable[str]) -> None:
        self._order.update(queues)

    def consume(self, number: int) -> list[str]:
        queues = self._order.consume(number)
        return sorted(queues, key=lambda queue: (queue in self._woken) is not self._woken_first)

    def rotate(self, queue: str) -> Any:
        self._woken_first = queue not in self._woken
        return self._order.rotate(queue)


def fetch_by_turns(channel: Any, woken: Set[str]) -> None:
    """Let *channel* do so, where it is one of kombu's Redis."""
    order = getattr(channel, "_queue_cycle", None)
    if order is not None:
        channel._queue_cycle = FetchByTurns(order, woken)  # noqa: SLF001  # there is no public way


class ByTurns:
    """What waits for a slot, with the part of a deque that kombu's semaphore uses."""

    def __init__(self, waiting: Iterable[Any] = ()) -> None:
        self._woken: deque[Any] = deque()
        self._others: deque[Any] = deque()
        self._next = self._woken
        for waiter in waiting:
            self.append(waiter)

    def __len__(self) -> int:
        return len(self._woken) + len(self._others)

    def append(self, waiter: tuple[Any, tuple[Any, ...], Any]) -> None:
        """*waiter* is a callback with its arguments; Celery's has the request."""
        woken = False
        with _TURN_GUARD:
            woken = any(getattr(argument, "woken", False) for argument in waiter[1])
        (self._woken if woken else self._others).append(waiter)

    def popleft(self) -> Any:
        """Raises :exc:`IndexError` if nothing waits."""
        line = self._next or (self._others if self._next is self._woken else self._woken)
        waiter = line.popleft()
        self._next = self._others if line is self._woken else self._woken
        return waiter

    def clear(self) -> None:
        self._woken.clear()
        self._others.clear()


class StartByTurns(bootsteps.Step):  # type: ignore[misc]
    """Lets the slots of a prefork worker be taken by turns, where its semaphore can be told to."""

    requires = frozenset({"celery.worker.components:Pool"})

    def create(self, parent: Any) -> None:
        slots: Any = getattr(parent, "semaphore", None)
        if all(hasattr(slots, name) for name in ("_waiting", "_add_waiter", "_pop_waiter")):
            line = ByTurns(slots._waiting)  # noqa: SLF001  # there is no public way
            vars(slots).update(_waiting=line, _add_waiter=line.append, _pop_waiter=line.popleft)
