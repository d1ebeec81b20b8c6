"""The URLs of Redis, one server or several, as redis-py takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from redis.connection import parse_url

from celery_dlock.backends.redis_client import Session, pool_options, unusable
from celery_dlock.backends.redis_direct import DirectSession
from celery_dlock.errors import ConfigurationError


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
            parts = urlsplit(url)
            user, at, hosts = parts.netloc.rpartition("@")
            addresses = tuple(_address(host, default_port) for host in hosts.split(","))
            # The query of a single server means the same for each of several.
            told = f"redis://{user}{at}host?{parts.query}"
            one: Mapping[str, Any] = parse_url(told)  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as exc:
            raise unusable(exc) from None
        options = {name: value for name, value in one.items() if name != "host"}
        return cls(addresses, parts.path.strip("/"), options)

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)


def session_of(url: str, driver: Mapping[str, Any]) -> Session:
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


def try_options(connection_class: Any, options: Mapping[str, Any]) -> None:
    """Build a connection without opening it: a wrong option shows now, not at a message."""
    try:
        connection_class(**options)
    except (ValueError, TypeError, redis.RedisError) as exc:
        raise unusable(exc) from None


def database(path: str) -> int:
    """The number that *path* is."""
    if path and not path.isdecimal():
        raise ConfigurationError("the path of a redis:// URL is the number of a database, as in /2")
    return int(path or 0)


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
    return url


def _address(host: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return parts.hostname, parts.port or default_port
