"""One KazooClient: what its session says, and what is sent in one flight.

Nothing is sent before the connection stands; what was under way when it broke is unknown, as its
caller is told.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect

from celery_dlock.backends.zookeeper_url import Place
from celery_dlock.errors import BackendUnavailable

#: kazoo warns at each attempt to connect, and shows passwords when it debugs.
logger = logging.getLogger("celery_dlock.kazoo")
logger.setLevel(logging.ERROR)

#: Seconds for an operation, the wait for a connection included.
ANSWER_TIMEOUT = 5.0

#: Seconds for a server to be reached, and again to grant a session, before the next one is tried.
CONNECT_TIMEOUT = 2.0

#: Sends one request by a KazooClient and returns its result to come. The driver has no types.
Send = Callable[[Any], Any]


class NoAnswer(BackendUnavailable, TimeoutError):
    """None came in time. As with drivers, an error of the system says so to those who look."""


class Session:
    """One client, and the last session that it was granted: its ``id``, its ``timeout`` in seconds.

    Both are ``None`` until there is one.
    """

    def __init__(self, place: Place) -> None:
        handler = _handler()
        handler.create_connection = partial(_connect, handler.create_connection)
        again = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5, "sleep_func": handler.sleep_func}
        self._log = _Log(logger)
        self.kazoo = _new_client(
            handler=handler, connection_retry=again, logger=self._log, **place.arguments
        )
        self.id: int | None = None
        self.timeout: float | None = None
        self._connected = handler.event_object()
        self._stopped = handler.event_object()
        connection: Any = self.kazoo._connection  # noqa: SLF001
        connection._invoke = partial(self._invoke, connection._invoke)  # noqa: SLF001
        self.kazoo.add_listener(self._told)
        self.kazoo.start_async()

    @property
    def over(self) -> bool:
        """Whether it will never connect again: the servers refuse who we are."""
        return self.timeout is not None and self.kazoo.client_state in ("AUTH_FAILED", "CLOSED")

    def connected(self, timeout: float) -> bool:
        """Whether it is, waiting for it up to *timeout* seconds."""
        if not self._connected.is_set():
            self._connected.wait(timeout)
        return bool(self._connected.is_set())

    def wait(self) -> None:
        """Return when it is connected. Raises :exc:`NoAnswer` if that takes too long."""
        if not self.connected(ANSWER_TIMEOUT):
            raise NoAnswer(f"there is no connection {self._log.complaint}".strip())

    def flight(self, sends: Iterable[Send]) -> list[Any]:
        """The results of requests that are sent together, ``None`` for what is about no node."""
        deadline = time.monotonic() + ANSWER_TIMEOUT
        self.wait()
        results = [send(self.kazoo) for send in sends]
        return [_answer(result, deadline) for result in results]

    def make_folder(self, path: str) -> None:
        """Make the node *path* and those above it. Only what is missing is asked for: who may
        write below a folder need not be allowed to make it.
        """
        try:
            if self.flight([lambda kazoo: kazoo.create_async(path)]) != [None]:
                return
        except NodeExistsError:
            return
        self.make_folder(path.rpartition("/")[0])
        self.make_folder(path)

    def stop(self) -> None:
        """End the session, and with it what lives as long; waits for that, but not for ever."""
        self.kazoo.handler.spawn(self._stop)
        self._stopped.wait(ANSWER_TIMEOUT)

    def _stop(self) -> None:
        try:
            self.kazoo.stop()
            self.kazoo.close()
        finally:
            self._stopped.set()

    def abandon(self) -> None:
        """In a forked child: leave it to the parent."""
        atexit.unregister(self.kazoo.handler.stop)

    def _told(self, state: str) -> None:
        if state == "CONNECTED":
            self._connected.set()
        else:
            self._connected.clear()

    def _invoke(
        self, invoke: Callable[..., Any], timeout: float, request: Any, xid: int | None = None
    ) -> Any:
        """The driver keeps the timeout that it asked for and goes by the one it was granted.

        It is told half of that. So it pings twice as often, and gives up a silent server after a
        third of the session, with time left to find another one.
        """
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        granted, zxid = invoke(min(timeout, CONNECT_TIMEOUT), request, xid)
        if granted.time_out > 0:
            self.id, self.timeout = granted.session_id, granted.time_out / 1000
        return granted._replace(time_out=granted.time_out // 2), zxid


def get(path: str) -> Send:
    return lambda kazoo: kazoo.get_async(path)


def exists(path: str) -> Send:
    return lambda kazoo: kazoo.exists_async(path)


def children(path: str) -> Send:
    return lambda kazoo: kazoo.get_children_async(path)


def _connect(connect: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The driver would give one server the time of a whole session."""
    return connect(*args, **{**kwargs, "timeout": CONNECT_TIMEOUT})


class _Log(logging.LoggerAdapter[logging.Logger]):
    """Keeps the driver's last warning, which says why there is no connection, and nobody else."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self.complaint = ""

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.complaint = f"({str(msg) % args})"
        super().warning(msg, *args, **kwargs)


def _new_client(**arguments: Any) -> Any:
    return KazooClient(**arguments)


def _answer(result: Any, deadline: float) -> Any:
    result.wait(max(0.0, deadline - time.monotonic()))
    if not result.ready():
        raise NoAnswer(f"no answer within {ANSWER_TIMEOUT:g} s")
    try:
        return result.get(block=False)
    except NoNodeError:
        return None


def _handler() -> Any:
    """The driver has one for each way to run several things at once."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("socket"):
        from kazoo.handlers.gevent import SequentialGeventHandler

        return SequentialGeventHandler()
    if eventlet is not None and eventlet.is_monkey_patched("socket"):
        from kazoo.handlers.eventlet import SequentialEventletHandler

        return SequentialEventletHandler()
    return SequentialThreadingHandler()
