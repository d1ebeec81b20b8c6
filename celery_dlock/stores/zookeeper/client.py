"""The session of one process: where it leads, when it is made, what its errors become.

Nothing is sent before the connection stands; what was under way when it broke is unknown, as its
caller is told.

What a connection imports (``encodings.idna``) is imported with this module: a child that is forked
while a thread imports it would wait for it for ever.
"""

from __future__ import annotations

import atexit
import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast
from urllib.parse import unquote

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Connect, GetChildren
from kazoo.security import CREATOR_ALL_ACL

from celery_dlock.core.checks import did_you_mean
from celery_dlock.core.lease import unsleeping
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import BackendOptions, servers_of
from celery_dlock.stores.unreadable import UnreadableKey

#: What of KazooClient may be set; the rest is ours.
OPTIONS = (
    *("use_ssl", "ca", "certfile", "keyfile", "keyfile_password", "verify_certs"),
    *("check_hostname", "sasl_options", "randomize_hosts"),
)


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """Which servers, which folder there, and how a client is made."""

    hosts: str
    chroot: str
    arguments: Mapping[str, Any]


def address_of(url: str, options: BackendOptions) -> ZooKeeperAddress:
    """What *url* and *options* say. Raises :exc:`~celery_dlock.errors.ConfigurationError`."""
    user, hosts, chroot = _parts(url)
    arguments: dict[str, Any] = {"hosts": hosts, "timeout": options.ttl}
    arguments |= _driver(options.driver)
    if user is not None:
        arguments["auth_data"] = [("digest", user)]
    if user is not None or "sasl_options" in arguments:
        arguments["default_acl"] = CREATOR_ALL_ACL
    return ZooKeeperAddress(hosts, chroot, arguments)


def _parts(url: str) -> tuple[str | None, str, str]:
    """User with password, hosts, and folder. The URL is never quoted: it may have a password."""
    try:
        servers, parts = servers_of(url)
        user, at, hosts = servers.rpartition("@")
        collect_hosts(hosts)
    except ValueError:
        raise ConfigurationError(
            "dlock_url is not of the form zookeeper://host1:2181,host2:2181/folder"
        ) from None
    if parts.query or parts.fragment:
        raise ConfigurationError(
            "a zookeeper:// URL takes no query; options go to dlock_backend_options"
        )
    if at and not all(user.partition(":")):
        raise ConfigurationError("a zookeeper:// URL takes user:password@ or neither of them")
    chroot = parts.path.rstrip("/")
    if any(folder in ("", ".", "..") for folder in chroot.split("/")[1:]):
        raise ConfigurationError("the folder of a zookeeper:// URL is absolute, as in /apps/shop")
    return (unquote(user) if at else None), hosts, chroot


def _driver(driver: Mapping[str, Any]) -> dict[str, Any]:
    for name in driver:
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS)
            raise ConfigurationError(f"dlock_backend_options for zookeeper has {name!r}; {hint}")
    settings = dict(driver)
    if settings.get("use_ssl"):  # kazoo alone would take any server's certificate for its own
        settings.setdefault("check_hostname", settings.get("verify_certs", True))
    if settings.get("check_hostname") and not settings.get("verify_certs", True):
        raise ConfigurationError("check_hostname in dlock_backend_options needs verify_certs")
    if settings.get("sasl_options") and importlib.util.find_spec("puresasl") is None:
        raise ConfigurationError(
            'sasl_options in dlock_backend_options need another package: pip install "kazoo[sasl]"'
        )
    return settings


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


class Client:
    """The session of this process, started when it is first needed.

    *on_return* is called in a thread of its own when a session has its connection again.
    """

    def __init__(
        self, address: ZooKeeperAddress, on_return: Callable[[Session], None] | None = None
    ) -> None:
        self._address = address
        self._sessions = PerProcess(lambda: Session(address, on_return), Session.abandon)
        self._last_zxid = 0  # of the sessions before this one

    @contextmanager
    def answers(self) -> Iterator[Session]:
        """The session; what is not a proper answer is :exc:`BackendUnavailable`."""
        try:
            yield self._started()
        except UnreadableKey:
            raise
        except BackendUnavailable as exc:
            raise BackendUnavailable(f"{self}: {exc}") from exc
        except (KazooException, OSError) as exc:
            text = f"{type(exc).__name__} {exc}".strip()
            raise BackendUnavailable(f"{self}: {text}") from exc
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as exc:
            raise BackendUnavailable(f"{self} gave an invalid answer: {exc}") from exc

    def session(self) -> Session | None:
        """The session, if this process has started one."""
        return self._sessions.made()

    def granted(self) -> float:
        """Seconds of a session, of one more that is ended again."""
        session = Session(self._address)
        try:
            session.wait()
        except NoAnswer as exc:
            raise BackendUnavailable(f"{self}: {exc}") from exc
        finally:
            session.stop()
        assert session.timeout is not None
        return session.timeout

    def lost_data(self) -> bool:
        """Whether servers have told this session of fewer transactions than one before it, since
        this was last asked. Its making is a transaction, so no member that lags does that.
        """
        session = self.session()
        if session is None or not 0 < session.kazoo.last_zxid < self._last_zxid:
            return False
        self._last_zxid = 0
        return True

    def close(self) -> None:
        session = self._sessions.take()
        if session is not None:
            session.stop()

    def __str__(self) -> str:
        return f"ZooKeeper at {self._address.hosts}"

    def _started(self) -> Session:
        session = self._sessions()
        if session.over:
            if self._sessions.take(session):
                self._last_zxid = max(self._last_zxid, session.kazoo.last_zxid)
                session.stop()
            session = self._sessions()
        return session


class Session:
    """One KazooClient, and the last session that it was granted: its ``id``, and its ``timeout`` in
    seconds.

    Both are ``None`` until there is one.
    """

    def __init__(
        self, address: ZooKeeperAddress, on_return: Callable[[Session], None] | None = None
    ) -> None:
        handler = _handler()
        handler.create_connection = partial(_connect, handler.create_connection)
        again = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5, "sleep_func": handler.sleep_func}
        self._on_return = on_return
        self._log = _Log(logger)
        self.kazoo = _new_client(
            handler=handler, connection_retry=again, logger=self._log, **address.arguments
        )
        self.id: int | None = None
        self.timeout: float | None = None
        self._lost_at: float | None = None
        self._connected = handler.event_object()
        self._stopped = handler.event_object()
        connection: Any = self.kazoo._connection  # noqa: SLF001
        connection._invoke = partial(self._invoke, connection._invoke)  # noqa: SLF001
        self.kazoo.add_listener(self._state_changed)
        self.kazoo.start_async()

    @property
    def over(self) -> bool:
        """Whether it is of no use any more, even if the servers are there.

        They refuse who we are; or it has been without a connection for longer than they keep it,
        and servers that came back with less than it has seen refuse this client for ever.
        """
        if self.timeout is None:
            return False
        lost_at = self._lost_at
        is_late = lost_at is not None and unsleeping() - lost_at > self.timeout
        return is_late or self.kazoo.client_state in ("AUTH_FAILED", "CLOSED")

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
        """End the session, and with it what lives as long; waits for that, but not for ever.

        Without a connection nobody hears of it, so there is nothing to wait for.
        """
        self.kazoo.handler.spawn(self._stop)
        if self._lost_at is None:
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

    def _state_changed(self, state: str) -> None:
        if state == "CONNECTED":
            returned, self._lost_at = self._lost_at is not None, None
            self._connected.set()
            if returned and self._on_return is not None:
                self.kazoo.handler.spawn(self._on_return, self)
        else:
            self._lost_at = self._lost_at or unsleeping()
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


@dataclass(frozen=True, slots=True)
class _GetEphemerals:
    """The driver does not have this request, which servers know from version 3.6 on."""

    prefix: str

    type: ClassVar[int] = 103

    def serialize(self) -> bytes:
        path = self.prefix.encode()
        return len(path).to_bytes(4, "big") + path

    def deserialize(self, answer: bytes, offset: int) -> list[str]:
        paths: list[str] = cast("Any", GetChildren).deserialize(answer, offset)
        return paths


def ephemerals(prefix: str) -> Send:
    """The paths below *prefix* that end with the session."""

    def send(kazoo: Any) -> Any:
        result = kazoo.handler.async_result()
        kazoo._call(_GetEphemerals(prefix), result)  # noqa: SLF001
        return result

    return send


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
