"""Publishing the messages of tasks that were called.

It never raises: a call that nobody answers is repeated by the sweeper of any worker, so what
fails here is late and not lost. A message of another broker is left to that broker's workers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from celery import Celery

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.events import Buried, Sinks, Subject, Woken
from celery_dlock.core.state import Cause, task_id_of
from celery_dlock.tasks.entry import Entry, OfAnotherVersion, Undecodable
from celery_dlock.tasks.history import HISTORY

logger = logging.getLogger("celery_dlock")


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

        The store repeats what does not get through.
        """
        ours = 0
        for wake in wakes:
            try:
                ours += self._wake(wake, producer)
            except Exception:
                logger.exception("%s could not be woken; it is called again", wake.task)
        return ours

    def bury(self, key: str, task: str, name: str, cause: Cause) -> None:
        """A message that was called is of no use in this process; perhaps it is in another.

        After some calls it is put aside, and the next one is called. *name* is its task's.
        """
        reply = self._backend.bury(key, task, cause)
        if reply.verdict:
            self._sinks.emit(Buried(Subject(task_id_of(task), name, key), key, cause))
        self(reply.wakes)

    def _wake(self, wake: Wake, producer: Any) -> bool:
        """Whether it was for us to publish."""
        try:
            entry = Entry.decode(wake.key, wake.message)
        except OfAnotherVersion as exc:
            logger.warning("%s waits for %s: %s", wake.task, wake.key, exc)
            self._backend.hand_back(wake.key, wake.task)
            return False
        except Undecodable:
            logger.exception("%s waits for %s and cannot be woken", wake.task, wake.key)
            self.bury(wake.key, wake.task, "", Cause.UNREADABLE)
            return False
        if entry.broker != self.broker:
            self._note_stranger(wake, entry.broker)
            self._backend.hand_back(wake.key, wake.task)
            return False
        self._publish(entry, producer)
        subject = Subject(task_id_of(wake.task), str(entry.headers.get("task")), wake.key)
        self._sinks.emit(Woken(subject, wake.key, wake.ending))
        return True

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
        history = {**entry.headers.get(HISTORY, {}), "key": entry.key}
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
