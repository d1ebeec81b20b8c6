"""A worker's path for one message at a time, in this process: no loop, no thread, no wait.

Broker, results and locks live in memory. A message is taken from its queue and goes through the
request class, the solo pool and the tracer that a worker would send it through; countdowns are
there to be looked at and are not waited for.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from celery._state import _on_app_finalizers, _set_current_app, current_app
from celery.backends.cache import _DUMMY_CLIENT_CACHE
from kombu.message import Message
from kombu.transport import memory

from celery_dlock import LockedTask, locked_task
from celery_dlock.core.events import Event
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing import InlineWorker, ManualClock

logger = logging.getLogger("tests.desk")


class Desk:
    """One app, and the hands that carry its messages.

    Bodies note in ``ran`` what a test asks for; ``patch`` is undone before the app is closed.
    """

    #: Of the store, with the fixture ``clock``.
    clock: ManualClock

    def __init__(self, **config: Any) -> None:
        self.events: list[Event] = []
        self.ran: list[Any] = []
        self.patch = pytest.MonkeyPatch()
        self.app = Celery("desk", set_as_current=False)
        self.app.conf.update(
            broker_url="memory://",
            result_backend="cache+memory://",
            result_extended=True,
            dlock_url="memory://",
            dlock_sinks=[self.events.append],
        )
        self.app.conf.update(config)
        self._worker = InlineWorker(self.app)
        self.connection, self.channel = self._worker.connection, self._worker.channel
        self.eventer = self._worker.eventer = self.app.events.Dispatcher(self.connection)

    @property
    def store(self) -> LockBackend:
        return runtime(self.app).backend

    def locked(self, key: Any = None, **options: Any) -> Callable[[Callable[..., Any]], LockedTask]:
        """``locked_task`` on this app."""
        decorator: Callable[[Callable[..., Any]], LockedTask] = locked_task(
            key, app=self.app, **options
        )
        return decorator

    def take(self, queue: str = "celery") -> Message | None:
        """The next message for *queue*, not acknowledged yet; one that was woken comes first."""
        return self._worker.take(queue)

    def receive(self, queue: str = "celery") -> Message:
        """The next message, of which there has to be one."""
        message = self.take(queue)
        assert message is not None, f"nothing waits in {queue}"
        return message

    def run(self, message: Message) -> Message:
        """Run it as a worker does; what became of it is in its ``acknowledged`` and its queue."""
        return self._worker.run(message)

    def deliver(self, queue: str = "celery") -> Message:
        """Take the next message of *queue* and run it."""
        return self.run(self.receive(queue))

    def deliver_all(self, at_most: int = 50) -> int:
        """Deliver until the queue is empty; how many there were."""
        for count in range(at_most):
            message = self.take()
            if message is None:
                return count
            self.run(message)
        raise AssertionError(f"more than {at_most} messages: do they go round in circles?")

    def sweep(self) -> None:
        """Look for what is due in the store, as every worker does."""
        self._worker.sweep()

    def passes(self, seconds: float) -> None:
        """Let *seconds* pass by the store's clock, and look for what is due."""
        self.clock.advance(seconds)
        self.sweep()

    def size(self, queue: str = "celery") -> int:
        """How many messages there are for *queue*, woken ones among them."""
        return self._worker.queued(queue)

    def happened(self, kind: type[Event]) -> list[Any]:
        """The events of the locks so far, of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def result(self, task_id: str) -> Any:
        return self.app.AsyncResult(task_id)

    def holders(self, key: str) -> list[str]:
        """The identities that hold *key* in the store."""
        return [holder.task for holder in self.store.peek(key).holders]


@contextmanager
def open_desk(**config: Any) -> Iterator[Desk]:
    """A desk whose app is the current one, as in a worker; the memory is wiped before and after."""
    _wipe()  # tests without a desk publish there, too
    before = current_app._get_current_object()
    shared = set(_on_app_finalizers)  # tasks that the next app would be given too
    made = Desk(**config)
    _set_current_app(made.app)
    try:
        yield made
    finally:
        made.patch.undo()
        _set_current_app(before)
        _on_app_finalizers.intersection_update(shared)
        made.connection.close()
        made.app.close()
        _wipe()


def _wipe() -> None:
    memory.Channel.queues.clear()
    memory.Transport.global_state.clear()
    _DUMMY_CLIENT_CACHE.clear()
