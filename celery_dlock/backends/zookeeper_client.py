"""The session of one process: when it is made, what its errors become, and what a fork means.

A client belongs to the process that started it: its thread is not there after a fork. One that a
child has inherited is left alone, because to close it would end the parent's session.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.exceptions import KazooException

from celery_dlock.backends.zookeeper_session import Session
from celery_dlock.backends.zookeeper_url import Place
from celery_dlock.errors import BackendUnavailable


class Client:
    """The session of this process, started when it is first needed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._mutex = threading.Lock()
        self._session: Session | None = None
        _clients.add(self)

    @contextmanager
    def answers(self) -> Iterator[Session]:
        """The session; what is not a proper answer is :exc:`BackendUnavailable`."""
        try:
            yield self._started()
        except BackendUnavailable as exc:
            raise BackendUnavailable(f"{self}: {exc}") from exc
        except (KazooException, OSError) as exc:
            text = f"{type(exc).__name__} {exc}".strip()
            raise BackendUnavailable(f"{self}: {text}") from exc
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as exc:
            raise BackendUnavailable(f"{self} gave an answer that is none: {exc}") from exc

    def session(self) -> Session | None:
        """The session, if this process has started one."""
        return self._session

    def close(self) -> None:
        with self._mutex:
            session, self._session = self._session, None
        if session is not None:
            session.stop()

    def __str__(self) -> str:
        return f"ZooKeeper at {self._place.hosts}"

    def _started(self) -> Session:
        session = self._session
        if session is None or session.over:
            with self._mutex:
                session = self._session
                if session is None or session.over:
                    if session is not None:
                        session.stop()
                    session = self._session = Session(self._place)
        return session

    def after_fork(self) -> None:
        """The child starts anew; a thread of the parent may have had the mutex."""
        self._mutex = threading.Lock()
        if self._session is not None:
            self._session.abandon()
            _inherited.append(self._session)
            self._session = None


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_inherited: list[Session] = []


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
