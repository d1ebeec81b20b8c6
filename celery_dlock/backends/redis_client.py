"""What a store asks of Redis in one process: scripts, one round trip at a time.

redis-py's pool does not survive every fork: one that a thread was using at that moment stays
locked in the child for ever. So a session belongs to the process that opened it. The same goes for
a module that a thread is importing at the fork, as the first connection does with ``idna``.

One connection error is retried at once, because a connection that idled may have been closed under
us; operations repeat safely. A timeout is not: the caller has waited long enough, and decides.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisClusterException
from redis.retry import Retry

from celery_dlock.backends.copies import Copies
from celery_dlock.backends.redis_scripts import Command, in_full
from celery_dlock.errors import BackendUnavailable, ConfigurationError

#: Seconds; the driver's options and the URL's query override them.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0

#: What redis-py raises while it looks for a server, or speaks with one.
DRIVER_ERRORS = (redis.RedisError, RedisClusterException, OSError)


class TooFewCopies(redis.RedisError):
    """A command was carried out, and not copied to as many places as it has to be."""


class Session:
    """The commands of one process, over redis-py's *client*.

    As a context manager it translates: whatever is not a proper answer becomes
    :exc:`BackendUnavailable`, without a password.
    """

    def __init__(self, client: Any, place: str, secrets: Sequence[object] = ()) -> None:
        self.pid = os.getpid()
        self.client = client  # its types speak of decoded replies and of futures, too
        self._place = place
        self._secrets = secrets

    def run(self, command: Command) -> Any:
        """What Redis answers to *command*."""
        return run(self.client, command)

    def each(self, commands: Sequence[Command], copies: Copies | None = None) -> list[Any]:
        """What Redis answers to each of *commands*; all go in one round trip.

        The error of one is its answer: the others may have been carried out. So is
        :exc:`TooFewCopies`, for all that were not copied in time.
        """
        return in_one_flight(self.client, commands, copies)

    def close(self) -> None:
        self.client.connection_pool.disconnect()

    def said(self, error: BaseException) -> str:
        """What the driver's *error* means to a person."""
        # Of Sentinels that do not answer redis-py tells at length how they were to be reached.
        what, _, _ = str(error).partition(" : <redis")
        return f"Redis at {self._place}: {what}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, DRIVER_ERRORS):
            _hide(error, self._secrets)
            raise BackendUnavailable(self.said(error)) from error
        if isinstance(error, (ValueError, TypeError, LookupError, AttributeError)):
            text = f"Redis at {self._place} gave an answer that is none: {error}"
            raise BackendUnavailable(text) from error


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
    flight = [*commands, *([] if copies is None else [_wait(copies)])]
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


def _wait(copies: Copies) -> Command:
    milliseconds = max(1, round(copies.timeout * 1000))  # 0 would be for ever
    if copies.on_disk:
        return ("WAITAOF", 1, copies.replicas, milliseconds)
    return ("WAIT", copies.replicas, milliseconds)


def _copied(answers: list[Any], told: Any, copies: Copies) -> list[Any]:
    """*answers*, if so many servers have told in time that they have what was written."""
    if isinstance(told, Exception):
        return [TooFewCopies(f"copies cannot be waited for: {told}")] * len(answers)
    disks, replicas = told if copies.on_disk else (1, told)
    if disks >= 1 and replicas >= copies.replicas:
        return answers
    what = f"the disk of {disks} masters and " if copies.on_disk else ""
    what += f"{replicas} of {copies.replicas} replicas within {copies.timeout:g} s"
    return [TooFewCopies(f"what was written came to {what}")] * len(answers)


def pool_options(driver: Mapping[str, Any]) -> dict[str, Any]:
    """redis-py's options for connections to one server."""
    return {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": ANSWER_TIMEOUT,
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        "retry_on_error": [redis.ConnectionError],
        **driver,
        "decode_responses": False,
    }


def unusable(error: Exception) -> ConfigurationError:
    """*error* is what redis-py says of a URL or of options; it may quote a password."""
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
