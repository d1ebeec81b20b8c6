"""The store on a Redis master that Sentinels replace by one of its replicas when it is gone.

What it does not give: exclusion over a failover. A replica that is promoted may not know the
holder, and lets a second one in; its token is larger as long as the clocks of the two servers
differ by less than the failover takes. ``dlock_wait_replicas`` makes the first unlikely. What must
not happen twice is guarded by the fence.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import redis
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions, Guarantee, Trait
from celery_dlock.stores.redis.client import (
    RedisSession,
    Servers,
    database,
    pool_options,
    spell_cert_reqs,
    try_options,
    unusable,
)
from celery_dlock.stores.redis.store import RedisBackend

#: Half of its types is unknown.
Sentinel: Any = redis.sentinel.Sentinel

SENTINEL_PORT = 26379

#: Seconds for a Sentinel to answer, until the next one is asked.
SENTINEL_TIMEOUT = 1.0


class _HangsUp:
    """A connection on which an answer was late is of no more use: the next command would get it.

    redis-py knows that of all connections but these, and would go on speaking with a master that
    hangs after another one has taken its place.
    """

    def read_response(self, *args: Any, **options: Any) -> Any:
        inherited: Any = super()
        return inherited.read_response(*args, **{"disconnect_on_error": True, **options})


class _Connection(_HangsUp, SentinelManagedConnection):
    pass


class _SSLConnection(_HangsUp, SentinelManagedSSLConnection):
    pass


class RedisSentinelBackend(RedisBackend):
    """All keys of the master of one name. Every new connection asks the Sentinels who it is."""

    traits: ClassVar[frozenset[Trait]] = RedisBackend.traits - {Trait.MONOTONE_FENCING}
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redis+sentinel://[[user]:password@]host[:port][,host[:port]…]/name[/db]``.

        User, password and the query are for Redis itself; the driver's option ``sentinel_kwargs``
        is for the Sentinels.
        """
        return cls(lambda: session_of_sentinels(url, options), options)


def session_of_sentinels(url: str, options: BackendOptions) -> RedisSession:
    """A session with the master that the Sentinels at *url* name, not connected.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` for what can be known to be wrong.
    """
    servers = Servers.of(url, SENTINEL_PORT)
    name, _, number = servers.path.partition("/")
    if not name:
        raise ConfigurationError(
            "redis+sentinel:// needs the name of the master, as in redis+sentinel://h1,h2/mymaster"
        )
    driver: dict[str, Any] = {
        **pool_options(options.driver),
        **servers.options,
        "db": database(number),
    }
    driver["connection_class"] = _SSLConnection if driver.pop("ssl", False) else _Connection
    asking: dict[str, Any] = {
        "socket_connect_timeout": SENTINEL_TIMEOUT,
        "socket_timeout": SENTINEL_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        **driver.pop("sentinel_kwargs", {}),
    }
    spell_cert_reqs(asking)
    try:
        client = Sentinel(servers.addresses, sentinel_kwargs=asking).master_for(name, **driver)
    except (ValueError, TypeError, redis.RedisError) as exc:
        raise unusable(exc) from None
    pool = client.connection_pool
    try_options(pool.connection_class, pool.connection_kwargs)
    secrets = [driver.get("password"), asking.get("password")]
    return RedisSession(client, f"{name}, of the Sentinels at {servers}", secrets)
