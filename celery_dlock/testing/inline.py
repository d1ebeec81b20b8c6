"""For tests of a project: a key that somebody else holds, and a worker without a process.

The worker takes one message at a time, when the test says so, and puts it through what a worker
would: the request class, the tracer, the lock, the policy. Broker and test are in one process, so
who waits is seen, and nothing is waited for: a countdown is not, and what was rescheduled is simply
the next message. What it does not show is what takes several processes.
"""

# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any

from celery import current_app, signals
from celery.concurrency.solo import TaskPool
from celery.worker.request import create_request_cls
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_dlock.core.events import (
    Deduplicated,
    Dropped,
    Event,
    Parked,
    Rescheduled,
    Revoked,
    Skipped,
)
from celery_dlock.core.lease import Lease
from celery_dlock.errors import LockLost
from celery_dlock.messages.woken_queues import is_woken, lead_home, name_beside
from celery_dlock.runtime import runtime
from celery_dlock.tasks.block import lock
from celery_dlock.testing.isolation import empty_queues, queues_of
from celery_dlock.testing.project import in_memory
from celery_dlock.worker.request import request_class

#: What :meth:`InlineWorker.deliver` says of a message whose task did not run.
_INSTEAD: Mapping[type[Event], str] = {
    Parked: "parked",
    Rescheduled: "rescheduled",
    Skipped: "skipped",
    Dropped: "dropped",
    Deduplicated: "skipped",
    Revoked: "revoked",
}

#: And of one that ran, by Celery's state.
_RAN = {"SUCCESS": "succeeded", "FAILURE": "failed", "RETRY": "retried"}


@contextmanager
def held_by_another(key: str | Sequence[str], *, app: Any = None) -> Iterator[Lease]:
    """Hold *key* as another task does, for the time of the block.

    Keys are complete, as for :func:`celery_dlock.lock`. It raises the same errors, without waiting.
    """
    block = lock(key, app=app, timeout=0)
    lease = Context().run(block.acquire)  # not under what the test itself holds
    try:
        yield lease
    finally:
        with suppress(LockLost):  # by the clock of a test its lease may have ended
            block.release()


class InlineWorker:
    """A worker that handles a message when a test asks for it. Made by :func:`inline_worker`."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.connection = app.connection_for_read()
        self.channel = self.connection.channel()
        self.eventer = app.events.Dispatcher(self.connection, enabled=False)

    def take(self, queue: str | None = None) -> Message | None:
        """The next message, as in :meth:`deliver`, not acknowledged yet."""
        for name in self._queues(queue):
            message: Message | None = self.channel.basic_get(name)
            if message is not None:
                if is_woken(name):
                    lead_home(message)
                message.accept = prepare_accept_content(self._app.conf.accept_content)
                return message
        return None

    def run(self, message: Message) -> Message:
        """Handle *message* as a worker does."""
        task = self._app.tasks[message.headers["task"]]
        request = create_request_cls(
            request_class(task), task, TaskPool(), "inline", self.eventer, app=self._app
        )(
            message,
            on_ack=message.ack_log_error,
            on_reject=message.reject_log_error,
            app=self._app,
            hostname="inline",
            eventer=self.eventer,
            task=task,
            connection_errors=(OSError,),
        )
        request.execute_using_pool(None)
        return message

    def deliver(self, queue: str | None = None) -> str:
        """Handle the next message, and return what happened to its task.

        It is that of *queue*, or of any queue of the application; one that was woken comes first.

        That is ``"succeeded"``, ``"failed"`` or ``"retried"``. If the body did not run it is
        ``"parked"``, ``"rescheduled"``, ``"skipped"``, ``"dropped"`` (a duplicate) or
        ``"revoked"``.

        Raises :exc:`AssertionError` if there is none.
        """
        message = self.take(queue)
        if message is None:
            raise AssertionError(f"no message waits in any of {self._queues(queue)}")
        said: list[str] = []

        def note(event: Event) -> None:
            if type(event) in _INSTEAD and event.subject.task_id == message.headers["id"]:
                said.append(_INSTEAD[type(event)])

        def ended(task_id: str = "", state: str | None = None, **_: Any) -> None:
            if task_id == message.headers["id"] and state in _RAN:
                said.insert(0, _RAN[state])

        signals.task_postrun.connect(ended)
        try:
            with runtime(self._app).sinks.also(note):
                self.run(message)
        finally:
            signals.task_postrun.disconnect(ended)
        return said[-1] if said else "revoked"

    def queued(self, queue: str | None = None) -> int:
        """How many messages the broker has for *queue*, or in all, including woken ones."""
        return sum(self.channel._size(name) for name in self._queues(queue))  # noqa: SLF001

    def _queues(self, queue: str | None) -> list[str]:
        return [name_beside(queue), queue] if queue else queues_of(self._app)

    def sweep(self) -> None:
        """Sweep the lock store as a worker does: leases expire, and the next tasks are woken."""
        here = runtime(self._app)
        here.wake(here.backend.sweep().wakes)

    def empty(self) -> None:
        """Drop all messages that the broker has for the application's queues."""
        empty_queues(self._app)


@contextmanager
def inline_worker(app: Any) -> Iterator[InlineWorker]:
    """A worker for *app*, for the time of the block, and all that :func:`in_memory` does.

    The queues are empty at first.
    """
    with in_memory(app):
        before = current_app._get_current_object()  # noqa: SLF001
        app.set_current()
        worker = InlineWorker(app)
        worker.empty()
        try:
            yield worker
        finally:
            before.set_current()
            worker.connection.close()
