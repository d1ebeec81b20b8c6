"""What a store asks of Redis in one process: where it is, and scripts, one round trip at a time.

redis-py's pool does not survive every fork: one that a thread was using at that moment stays
locked in the child for ever. So does a module that a thread is importing at the fork, as the first
connection does with ``idna``.

One connection error is retried at once, because a connection that idled may have been closed under
us; operations repeat safely, and one whose answer would be another one says that it asks again. A
timeout is not retried: the caller has waited long enough, and decides.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import NoScriptError, RedisClusterException
from redis.retry import Retry

from celery_dlock.core.checks import quoted
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.base import Copies, servers_of
from celery_dlock.stores.redis.scripts import Command, in_full, refused_command
from celery_dlock.stores.unreadable import NONSENSE

#: Seconds; the driver's options and the URL's query override them.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0

#: What redis-py raises while it looks for a server, or speaks with one.
DRIVER_ERRORS = (redis.RedisError, RedisClusterException, OSError)


#: Makes the command that says that it asks again.
Again = Callable[[], Command]


class TooFewCopies(redis.RedisError):
    """A command was carried out, and not copied to as many places as it has to be."""


class RedisSession(AbstractContextManager["RedisSession"]):
    """The commands of one process, over redis-py's *client*.

    As a context manager it translates: whatever is not a proper answer becomes
    :exc:`BackendUnavailable`, without a password.
    """

    def __init__(self, client: Any, place: str, secrets: Sequence[object] = ()) -> None:
        self.client = client  # its types speak of decoded replies and of futures, too
        self._place = place
        self._secrets = secrets

    def run(self, command: Command, again: Again | None = None) -> Any:
        """What Redis answers to *command*, or to *again* if the answer to that was lost."""
        try:
            return run(self.client, command)
        except redis.ConnectionError:
            return run(self.client, again() if again else command)

    def each(self, commands: Sequence[Command], copies: Copies | None = None) -> list[Any]:
        """What Redis answers to each of *commands*; all go in one round trip.

        The error of one is its answer: the others may have been carried out. So is
        :exc:`TooFewCopies`, for all that were not copied in time.
        """
        try:
            return in_one_flight(self.client, commands, copies)
        except redis.ConnectionError:
            return in_one_flight(self.client, commands, copies)

    def close(self) -> None:
        self.client.connection_pool.disconnect()

    def describe(self, error: BaseException) -> str:
        """What the driver's *error* means to a person; a command that is refused is named."""
        # Of Sentinels that do not answer redis-py tells at length how they were to be reached.
        text, _, _ = str(error).partition(" : <redis")
        command = refused_command(text)
        return f"Redis at {self._place}{command and f' refuses {command}'}: {text}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, DRIVER_ERRORS):
            _hide(error, self._secrets)
            raise BackendUnavailable(self.describe(error)) from error
        if isinstance(error, NONSENSE):
            text = f"Redis at {self._place} gave an invalid answer: {error}"
            raise BackendUnavailable(text) from error


class DirectSession(RedisSession):
    """A shorter way to one server: redis-py's connections, and not what its client does besides.

    That takes the larger part of a script's time: packing, pools and metrics. There are as many
    connections as there are commands at the same time, and the last one used goes first. One whose
    answer did not come, for whatever reason, is closed before anybody else can get that answer, and
    opens again when it is used.
    """

    def __init__(self, client: redis.Redis, place: str, secrets: Sequence[object]) -> None:
        super().__init__(client, place, secrets)
        self._pool: Any = client.connection_pool
        self._idle: deque[Any] = deque()  # its ends are safe to use from any thread

    def run(self, command: Command, again: Again | None = None) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._pool.make_connection()
        try:
            try:
                return self._answer(connection, command)
            except redis.ConnectionError:
                return self._answer(connection, again() if again else command)
        finally:
            self._idle.append(connection)

    def each(self, commands: Sequence[Command], copies: Copies | None = None) -> list[Any]:
        """One script alone goes the shorter way, too."""
        if len(commands) == 1 and commands[0][0] == "EVALSHA" and copies is None:
            return [self.run(commands[0])]
        return super().each(commands, copies)

    def close(self) -> None:
        super().close()
        while self._idle:
            self._idle.pop().disconnect()

    def _answer(self, connection: Any, command: Command) -> Any:
        try:
            connection.send_packed_command([packed(command)])
            return connection.read_response()
        except NoScriptError:
            return self._answer(connection, in_full(command))
        except redis.ResponseError:
            raise
        except BaseException:  # a time limit, too, strikes while the answer is on its way
            connection.disconnect()
            raise


def packed(command: Command) -> bytes:
    """*command* as it goes over the wire."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        value = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


def checked(answers: list[Any]) -> list[Any]:
    """*answers*, unless there is an error among them: the first is raised."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def run(client: Any, command: Command) -> Any:
    """The answer of the one server that *client* speaks to."""
    try:
        return client.execute_command(*command)
    except NoScriptError:
        return client.execute_command(*in_full(command))


def in_one_flight(client: Any, commands: Sequence[Command], copies: Copies | None) -> list[Any]:
    """The answers of the one server that *client* speaks to, errors among them."""
    if len(commands) == 1 and copies is None:
        return [run(client, commands[0])]
    flight = [*commands]
    if copies is not None:  # within 0 milliseconds would be for ever
        flight += [("WAIT", copies.replicas, max(1, round(copies.timeout * 1000)))]
    answers = _fly(client, flight)
    unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:  # a server knows the scripts of one operation, or none
        first = unknown[0]
        flight = [in_full(flight[first]), *flight[first + 1 :]]
        answers = [*answers[:first], *_fly(client, flight)]
    if copies is None:
        return answers
    return _copied(answers[:-1], answers[-1], copies)


def _fly(client: Any, commands: Sequence[Command]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    return answers


def _copied(answers: list[Any], replicas: Any, copies: Copies) -> list[Any]:
    """*answers*, if so many servers have told in time that they have what was written."""
    if isinstance(replicas, Exception):
        return [TooFewCopies(f"replicas cannot be waited for: {replicas}")] * len(answers)
    if replicas >= copies.replicas:
        return answers
    came = f"{replicas} of {copies.replicas} replicas within {copies.timeout:g} s"
    return [TooFewCopies(f"what was written came to {came}")] * len(answers)


class _Credentials(redis.CredentialProvider):
    """Those of *provider*. If it fails there is no connection, whatever it raises."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        try:
            return self._provider.get_credentials()
        except redis.RedisError:
            raise
        except Exception as exc:  # it asks whoever it likes
            raise redis.ConnectionError(f"the credential provider failed: {exc}") from exc


def pool_options(driver: Mapping[str, Any]) -> dict[str, Any]:
    """redis-py's options for connections to one server. What is asked again is decided here."""
    if provider := driver.get("credential_provider"):
        driver = {**driver, "credential_provider": _Credentials(provider)}
    return {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": ANSWER_TIMEOUT,
        **{name: value for name, value in driver.items() if not name.startswith("retry")},
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
    }


#: Where redis-py names an option that it does not know, or whose value in a URL it cannot read.
_NAMED = re.compile(r"(?:keyword argument|value for) ['`](\w+)['`]")


def unusable(error: Exception) -> ConfigurationError:
    """*error* is what redis-py says of a URL or of options; it may quote a password. If it names an
    option, only that is told.
    """
    named = _NAMED.search(str(error))
    if named:
        return ConfigurationError(
            f"redis-py cannot use the option {named[1]!r} of the URL of the lock store"
        )
    kind = type(error).__name__
    return ConfigurationError(
        f"redis-py cannot use the URL of the lock store, or its options ({kind})"
    )


def _hide(error: BaseException | None, secrets: Sequence[object]) -> None:
    """Old servers and proxies quote the AUTH that they did not understand."""
    while error is not None:
        for secret in secrets:
            if isinstance(secret, str) and secret:
                error.args = tuple(str(part).replace(secret, "***") for part in error.args)
        error = error.__cause__ or error.__context__


@dataclass(frozen=True, slots=True)
class Servers:
    """What a URL with several servers says: who they are, the path, and options of redis-py."""

    addresses: tuple[tuple[str, int], ...]
    path: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, url: str, default_port: int) -> Self:
        """Read ``scheme://[[user]:password@]host[:port][,host[:port]…]/path[?query]``.

        Raises :exc:`~celery_dlock.errors.ConfigurationError`.
        """
        try:
            servers, parts = servers_of(url)
            user, at, hosts = servers.rpartition("@")
            addresses = tuple(_address(host, default_port) for host in hosts.split(","))
            # The query of a single server means the same for each of several.
            single = f"redis://{user}{at}host?{parts.query}"
            options: Mapping[str, Any] = parse_url(single)  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as exc:
            raise unusable(exc) from None
        options = {name: value for name, value in options.items() if name != "host"}
        return cls(addresses, parts.path.strip("/"), options)

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)


def session_of(url: str, driver: Mapping[str, Any]) -> RedisSession:
    """A session with the one server at *url* with redis-py's options *driver*, not connected.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` for what can be known to be wrong.
    """
    try:
        pool = redis.ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            _driver_url(url), **pool_options(driver)
        )
    except (ValueError, TypeError, redis.RedisError) as exc:
        raise unusable(exc) from None
    options: dict[str, Any] = pool.connection_kwargs
    try_options(pool.connection_class, options)
    host = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    place = f"{options.get('path', host)}, database {options.get('db', 0)}"
    return DirectSession(redis.Redis(connection_pool=pool), place, [options.get("password")])


#: How Celery spells it in its own URLs, and redis-py.
_CERT_REQS = tuple((f"CERT_{name.upper()}", name) for name in ("required", "optional", "none"))


def spell_cert_reqs(options: dict[str, Any]) -> None:
    """Write ``ssl_cert_reqs`` in redis-py's *options* as redis-py does.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` for a value that neither knows.
    """
    given = options.get("ssl_cert_reqs")
    if given is None or isinstance(given, ssl.VerifyMode):
        return
    for spellings in _CERT_REQS:
        if given in spellings:
            _, options["ssl_cert_reqs"] = spellings
            return
    known = ", ".join(name for spellings in _CERT_REQS for name in spellings)
    raise ConfigurationError(
        f"ssl_cert_reqs={quoted(given)}, for the lock store on Redis, is none of {known}"
    )


def trusts_anyone(options: Mapping[str, Any]) -> bool:
    """Whether redis-py's *options* say that no certificate is to be looked at."""
    return options.get("ssl_cert_reqs", "required") in ("none", None, ssl.CERT_NONE)


def try_options(connection_class: Any, options: dict[str, Any]) -> None:
    """Build a connection without opening it: a wrong option shows now, not at a message.

    With TLS a certificate has to be that of the host, so *options* come to say that: redis-py
    before 6 does not ask for it by itself.
    """
    spell_cert_reqs(options)
    if issubclass(connection_class, redis.SSLConnection) and not trusts_anyone(options):
        options.setdefault("ssl_check_hostname", True)
    if isinstance(options.get("retry"), str):  # from the query, where redis-py takes any text
        raise ConfigurationError("a Redis URL takes no retry: the store retries by itself")
    try:
        connection_class(**options)
    except (ValueError, TypeError, AttributeError, redis.RedisError) as exc:
        raise unusable(exc) from None


def database(path: str) -> int:
    """The number that *path* is."""
    if path and not path.isdecimal():
        raise ConfigurationError("the path of a redis:// URL is the number of a database, as in /2")
    return int(path or 0)


#: What redis-py calls it: a Valkey speaks Redis' protocol, and runs its scripts.
_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}


def _driver_url(url: str) -> str:
    """*url* as redis-py spells it, refused where redis-py would guess."""
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise unusable(exc) from None
    path = parts.path.strip("/")
    if parts.scheme == "redis+unix":
        if not path:
            raise ConfigurationError(
                "redis+unix:// needs a path, as in redis+unix:///run/redis.sock"
            )
        return url.removeprefix("redis+")
    database(path)
    scheme, _, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme.lower(), scheme)}://{rest}"


def _address(host: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return parts.hostname, parts.port or default_port
