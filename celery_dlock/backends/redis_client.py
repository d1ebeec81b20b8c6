"""A client of Redis for one process: how it is opened, and what its errors become.

redis-py's pool does not survive every fork: one that a thread was using at that moment stays
locked in the child for ever. So a client belongs to the process that opened it. The same goes for
a module that a thread is importing at the fork, as the first connection does with ``idna``.

One connection error is retried at once, because a connection that idled may have been closed under
us; operations repeat safely. A timeout is not: the caller has waited long enough, and decides.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from celery_dlock.backends.redis_wire import script
from celery_dlock.errors import BackendUnavailable, ConfigurationError

#: Seconds; the driver's options and the URL's query override them.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0

RULES = ("key", "edits", "turns")


@dataclass(frozen=True, slots=True)
class Session:
    """One process's client and its scripts; a script is loaded when the server asks for it."""

    pid: int
    client: redis.Redis
    enter: Script
    leave: Script
    renew: Script
    reap: Script
    sweep: Script
    upkeep: Script
    parked: Script
    peek: Script

    @classmethod
    def over(cls, client: redis.Redis) -> Self:
        return cls(
            os.getpid(),
            client,
            enter=client.register_script(script(*RULES, "machine", "claim", "enter")),
            leave=client.register_script(script(*RULES, "machine", "claim", "leave")),
            renew=client.register_script(script(*RULES, "renew")),
            reap=client.register_script(script(*RULES, "reap")),
            sweep=client.register_script(script(*RULES, "sweep")),
            upkeep=client.register_script(script(*RULES, "upkeep")),
            parked=client.register_script(script("key", "parked")),
            peek=client.register_script(script("key", "peek")),
        )

    def close(self) -> None:
        self.client.connection_pool.disconnect()

    @contextmanager
    def answers(self) -> Iterator[Self]:
        """Whatever is not a proper answer is :exc:`BackendUnavailable`, without a password."""
        try:
            yield self
        except (redis.RedisError, OSError) as exc:
            _hide_password(exc, self._options.get("password"))
            raise BackendUnavailable(f"Redis at {self._place}: {exc}") from exc
        except (ValueError, TypeError, LookupError, AttributeError) as exc:
            text = f"Redis at {self._place} gave an answer that is none: {exc}"
            raise BackendUnavailable(text) from exc

    @property
    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = self.client.connection_pool.connection_kwargs
        return options

    @property
    def _place(self) -> str:
        options = self._options
        host = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        return f"{options.get('path', host)}, database {options.get('db', 0)}"


def client_of(url: str, driver: Mapping[str, Any]) -> redis.Redis:
    """The client for *url* with redis-py's options *driver*, not connected.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` for what can be known to be wrong.
    """
    options = {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": ANSWER_TIMEOUT,
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        "retry_on_error": [redis.ConnectionError],
        **driver,
        "decode_responses": False,
    }
    try:
        pool = redis.ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            _driver_url(url), **options
        )
        # A connection that is built, not opened: a wrong option shows now, not at a message.
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError, redis.RedisError) as exc:
        # The driver's own words may quote a part of the URL, password included.
        kind = type(exc).__name__
        text = f"redis-py cannot use the URL of the lock store, or its options ({kind})"
        raise ConfigurationError(text) from None
    return redis.Redis(connection_pool=pool)


def _driver_url(url: str) -> str:
    """*url* as redis-py spells it, refused where redis-py would guess."""
    parts = urlsplit(url)
    path = parts.path.strip("/")
    if parts.scheme == "redis+unix":
        if not path:
            raise ConfigurationError(
                "redis+unix:// needs a path, as in redis+unix:///run/redis.sock"
            )
        return url.removeprefix("redis+")
    if path and not path.isdecimal():
        raise ConfigurationError("the path of a redis:// URL is the number of a database, as in /2")
    return url


def _hide_password(exc: BaseException | None, password: object) -> None:
    """Old servers and proxies quote the AUTH that they did not understand."""
    while isinstance(password, str) and password and exc is not None:
        exc.args = tuple(str(part).replace(password, "***") for part in exc.args)
        exc = exc.__cause__ or exc.__context__
