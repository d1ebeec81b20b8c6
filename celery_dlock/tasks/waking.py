"""Publishing the messages of tasks that were called.

What fails here is late and not lost, and raises nothing: a call that nobody answers is repeated by
the sweeper of any worker. A message of another broker is left to that broker's workers, and one
that no broker would take is put aside after some calls.
"""

from __future__ import annotations

import logging
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from amqp.exceptions import NotFound, PreconditionFailed
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import SerializationError

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.events import Buried, Sinks, Subject, Woken
from celery_dlock.core.state import Cause, task_id_of
from celery_dlock.tasks.entry import Entry, OfAnotherVersion, Undecodable
from celery_dlock.tasks.history import HISTORY, carried_by

logger = logging.getLogger("celery_dlock")

#: The message itself is at fault, or where it goes. All else may be the broker's trouble, or that
#: of the way there: an outage must not put anything aside.
UNPUBLISHABLE = (
    NotFound,
    PreconditionFailed,
    SerializationError,
    TypeError,
    ValueError,
    LookupError,
    struct.error,
)

#: So many messages of another version are remembered as having been told of.
REMEMBERED = 10_000


class Waker:
    """Publishes for one app."""

    def __init__(
        self, app: Celery, backend: LockBackend, sinks: Sinks, broker: str | None = None
    ) -> None:
        self._app = app
        self._named = broker
        self._backend = backend
        self._sinks = sinks
        self._strangers: set[str] = set()
        self._of_another_version: set[str] = set()

    @cached_property
    def broker(self) -> str:
        """Tells the broker from those of others that share the store.

        By its address, and neither by the user nor by the name of the app: whoever publishes may
        go by others than the workers. ``dlock_broker`` is for one that has several addresses.
        """
        if self._named is not None:
            return self._named
        with self._app.connection_for_write() as connection:
            at, kind = connection.info(), connection.transport.driver_type
            folder = connection.transport_options.get("data_folder_out", "")  # of filesystem://
            return f"{kind}://{at['hostname']}:{at['port']}/{at['virtual_host']}{folder}"

    def __call__(self, wakes: Sequence[Wake], producer: Any = None) -> int:
        """Publish each message, with *producer* if one is at hand; how many were our own.

        So is each that the store calls meanwhile. It repeats what does not get through.
        """
        ours, todo, seen = 0, deque(wakes), set[tuple[str, str]]()
        while todo:
            wake = todo.popleft()
            if (wake.key, wake.task) in seen:
                continue  # or two messages of another broker would call each other for ever
            seen.add((wake.key, wake.task))
            try:
                others = self._wake(wake, producer)
            except SoftTimeLimitExceeded:  # it only happens to strike here
                raise
            except Exception:
                logger.exception("%s could not be woken; it is called again", wake.task)
            else:
                ours += others is None
                todo.extend(others or ())
        return ours

    def bury(self, key: str, task: str, name: str, cause: Cause) -> None:
        """A message that was called is of no use in this process; perhaps it is in another.

        After some calls it is put aside, and the next one is called. *name* is its task's.
        """
        self(self._bury(key, task, name, cause))

    def _bury(self, key: str, task: str, name: str, cause: Cause) -> Sequence[Wake]:
        """Who is called instead."""
        reply = self._backend.bury(key, task, cause)
        if reply.verdict:
            self._sinks.emit(Buried(self._subject(task, name), key, cause))
        return reply.wakes

    def _wake(self, wake: Wake, producer: Any) -> Sequence[Wake] | None:
        """``None`` when it is published; who was called meanwhile, when it was not for us to."""
        try:
            entry = Entry.decode(wake.key, wake.message)
        except OfAnotherVersion as exc:
            self._note_version(wake, exc)
            return self._backend.hand_back(wake.key, wake.task).wakes
        except Undecodable:
            logger.exception("%s waits for %s and cannot be woken", wake.task, wake.key)
            return self._bury(wake.key, wake.task, "", Cause.UNREADABLE)
        if entry.broker != self.broker:
            self._note_stranger(wake, entry.broker)
            return self._backend.hand_back(wake.key, wake.task).wakes
        name = str(entry.headers.get("task"))
        subject = self._subject(wake.task, name, carried_by(entry.headers))
        try:
            self._publish(entry, producer)
        except UNPUBLISHABLE:
            logger.exception("%s waits for %s and cannot be published", wake.task, wake.key)
            return self._bury(wake.key, wake.task, name, Cause.UNPUBLISHABLE)
        self._sinks.emit(Woken(subject, wake.key, wake.ending))
        return None

    def _subject(self, task: str, name: str, carried: Mapping[str, str] = {}) -> Subject:
        """The template is known where the task is; elsewhere there is none."""
        definition = getattr(self._app.tasks.get(name), "lock_definition", None)
        return Subject(task_id_of(task), name, definition.label if definition else "", carried)

    def _note_version(self, wake: Wake, exc: OfAnotherVersion) -> None:
        """Once for each message, however often it is called."""
        if wake.task not in self._of_another_version:
            if len(self._of_another_version) >= REMEMBERED:
                self._of_another_version.clear()
            self._of_another_version.add(wake.task)
            logger.warning("%s waits for %s: %s", wake.task, wake.key, exc)

    def _note_stranger(self, wake: Wake, broker: str) -> None:
        """Once for each broker: it may be our own, called by another name."""
        if broker not in self._strangers:
            self._strangers.add(broker)
            logger.warning(
                "%s waits for a worker at the broker %s; here it is %s. If that is the same one "
                "under another address, name it in all processes alike with dlock_broker",
                wake.task,
                broker,
                self.broker,
            )

    def _publish(self, entry: Entry, producer: Any) -> None:
        history = {**entry.headers.get(HISTORY, {}), "key": entry.key, "called": time.time()}
        policy = self._app.conf.task_publish_retry_policy
        with self._app.producer_or_acquire(producer) as acquired:
            acquired.publish(
                entry.body,
                exchange=entry.exchange,
                routing_key=entry.routing_key,
                content_type=entry.content_type,
                content_encoding=entry.content_encoding,
                compression=entry.headers.get("compression", ""),  # it came unpacked
                headers={**entry.headers, "eta": None, HISTORY: history},
                retry=bool(self._app.conf.task_publish_retry),
                retry_policy=policy,
                **entry.properties,
            )
