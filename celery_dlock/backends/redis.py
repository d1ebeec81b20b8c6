"""The store on Redis: each operation is one script, one round trip, applied whole or not at all.

What it does not give: safety against loss of data. A server that restarts without its last writes,
or a replica promoted too early, does not know the holder and lets a second one in; its token is
larger all the same as long as the server's clock does not step back over the outage. What must
not happen twice is guarded by the fence in the resource, with this store as with any other.

One connection error is retried at once, because a connection that idled may have been closed under
us; operations repeat safely. A timeout is not: the caller has waited long enough, and decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_dlock.backends import redis_wire as wire
from celery_dlock.backends.base import BackendOptions, Guarantee, LockBackend, Reply, Trait
from celery_dlock.core.state import (
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Outcome,
    RenewVerdict,
)
from celery_dlock.errors import BackendUnavailable, ConfigurationError

#: Seconds; `dlock_backend_options` and the URL's query override them.
CONNECT_TIMEOUT = 2.0
ANSWER_TIMEOUT = 5.0


class RedisBackend(LockBackend):
    """All keys of one Redis server, version 6.2 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.MULTI_PROCESS, Trait.MULTI_HOST, Trait.LEASE_PER_TASK, Trait.MONOTONE_FENCING}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.MONOTONE

    def __init__(self, client: redis.Redis, options: BackendOptions) -> None:
        self._client = client
        self._prefix = options.prefix
        self._clock = options.clock
        self._enter = client.register_script(wire.script("key", "machine", "claim", "enter"))
        self._leave = client.register_script(wire.script("key", "machine", "claim", "leave"))
        self._renew = client.register_script(wire.script("key", "machine", "renew"))
        self._reap = client.register_script(wire.script("key", "machine", "reap"))
        self._peek = client.register_script(wire.script("key", "peek"))

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redis://[[user]:password@]host[:port][/db]``, ``rediss://…`` with TLS, or
        ``redis+unix:///path/to.sock[?db=n]``; the query takes redis-py's connection options.
        """
        driver = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_timeout": ANSWER_TIMEOUT,
            "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            "retry_on_error": [redis.ConnectionError],
            **options.driver,
            "decode_responses": False,
        }
        try:
            client = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
                _driver_url(url), **driver
            )
            _try_options(client)
        except (ValueError, TypeError, redis.RedisError) as exc:
            # The driver's own words may quote a part of the URL, password included.
            kind = type(exc).__name__
            raise ConfigurationError(
                f"redis-py cannot use this URL or its options: {kind}"
            ) from None
        return cls(client, options)

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        with self._answers():
            verdict, wakes = self._claim(self._enter, claim, message)
            return Reply(wire.enter_verdict(verdict), wire.wakes(claim.key, wakes))

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        with self._answers():
            verdict, wakes = self._claim(self._leave, claim, message, outcome.value)
            return Reply(wire.leave_verdict(verdict), wire.wakes(claim.key, wakes))

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if not claims:
            return []
        keys = [wire.names(self._base(claim.key))[0] for claim in claims]
        args = [self._now()]
        for claim in claims:
            args += [claim.task, claim.nonce, claim.ttl, claim.lock_delay]
        with self._answers():
            return wire.renew_verdicts(self._renew(keys=keys, args=args), len(claims))

    def reap(self, key: str) -> Reply[None]:
        with self._answers():
            _, wakes = self._reap(keys=wire.names(self._base(key)), args=[self._now()])
            return Reply(None, wire.wakes(key, wakes))

    def peek(self, key: str) -> KeyState:
        """The whole state of *key*, lapsed places included; costs what the queue is long."""
        with self._answers():
            found = self._peek(keys=wire.names(self._base(key)), args=[self._now()])
            return wire.key_state(found)

    def close(self) -> None:
        self._client.close()

    def _claim(
        self, script: Any, claim: Claim, message: bytes | None, *more: str
    ) -> tuple[Any, Any]:
        verdict, wakes = script(
            keys=wire.names(self._base(claim.key), claim.task),
            args=[self._now(), *wire.claim_arguments(claim, message), *more],
        )
        return verdict, wakes

    def _base(self, key: str) -> str:
        return wire.base_name(self._prefix, key)

    def _now(self) -> Any:
        """Empty for the server's own time, which is what counts outside tests."""
        return "" if self._clock is None else self._clock()

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Whatever is not a proper answer is :exc:`BackendUnavailable`, without a password."""
        try:
            yield
        except (redis.RedisError, OSError) as exc:
            _hide_password(exc, self._options().get("password"))
            raise BackendUnavailable(f"Redis at {self._place()}: {exc}") from exc
        except (ValueError, TypeError, LookupError, AttributeError) as exc:
            text = f"Redis at {self._place()} gave an answer that is none: {exc}"
            raise BackendUnavailable(text) from exc

    def _options(self) -> dict[str, Any]:
        return self._client.connection_pool.connection_kwargs

    def _place(self) -> str:
        options = self._options()
        host = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        return f"{options.get('path', host)}, database {options.get('db', 0)}"


def _driver_url(url: str) -> str:
    """*url* as redis-py spells it, refused where redis-py would guess."""
    parts = urlsplit(url)
    if parts.scheme == "redis+unix":
        if not parts.path:
            raise ConfigurationError(
                "a redis+unix:// URL needs a path: redis+unix:///run/redis.sock"
            )
        return url.removeprefix("redis+")
    if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        raise ConfigurationError("the path of a redis:// URL is the number of a database, as in /2")
    return url


def _try_options(client: redis.Redis) -> None:
    """Build a connection without connecting: a wrong option shows now, not at the first message."""
    pool = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)


def _hide_password(exc: BaseException | None, password: object) -> None:
    """Old servers and proxies quote the AUTH they did not understand."""
    while isinstance(password, str) and password and exc is not None:
        exc.args = tuple(str(part).replace(password, "***") for part in exc.args)
        exc = exc.__cause__ or exc.__context__
