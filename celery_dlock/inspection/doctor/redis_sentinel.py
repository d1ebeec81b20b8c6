"""The store on a master that Sentinels watch over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import redis

from celery_dlock.backends.redis_client import pool_options
from celery_dlock.backends.redis_sentinel import SENTINEL_PORT, session_of_sentinels
from celery_dlock.backends.redis_url import Servers
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.clock import Clock
from celery_dlock.inspection.doctor.finding import Finding, asked
from celery_dlock.inspection.doctor.redis import BRIEF, brief, copied, one_store
from celery_dlock.inspection.doctor.redis_server import Server, replica_on_time
from celery_dlock.settings import Settings

FEWEST = 3


def examine_sentinel(case: Case) -> Iterator[Finding]:
    """``redis+sentinel://``."""
    servers = Servers.of(case.settings.url, SENTINEL_PORT)
    name = servers.path.partition("/")[0]
    where = f"store {name}, of the Sentinels at {servers}"
    yield from asked(where, _watch(servers, name, case.settings.backend_options, where))
    yield from asked(where, _master(case.settings, where, case.clock))


def _master(settings: Settings, where: str, clock: Clock) -> Iterator[Finding]:
    options = replace(settings.options, driver=brief(settings.backend_options))
    with closing(session_of_sentinels(settings.url, options)) as session, session:
        server = Server.read(session.client, clock)
    yield from one_store(server, where)
    yield from copied(server, where, settings.wait_replicas)
    for client in _replicas(settings, server):
        at = "replica {host}:{port}".format(**client.get_connection_kwargs())
        yield from asked(at, replica_on_time(client, at, clock))
    if not server.replicas:
        yield Finding(
            "redis-no-replica",
            "weak",
            where,
            promise="When the master is gone nothing takes its place, and no lock is taken.",
            found="no connected replica",
            mend="start a replica (REPLICAOF) of this master",
        )
    if server.config.get("min-replicas-to-write") == "0":
        yield Finding(
            "redis-min-replicas",
            "weak",
            where,
            promise="A master that is cut off goes on giving locks beside the one that replaced "
            "it: two tasks hold one key.",
            found="min-replicas-to-write 0",
            mend="CONFIG SET min-replicas-to-write 1 on every server, and the same in redis.conf; "
            "while none follows nothing is written, so have two",
        )


def _watch(servers: Servers, name: str, driver: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """What the Sentinels say of themselves."""
    told = {f"{host}:{port}": _told(host, port, name, driver) for host, port in servers.addresses}
    away = [place for place, state in told.items() if isinstance(state, Exception)]
    states = {place: s for place, s in told.items() if not isinstance(s, Exception)}
    if away:
        yield Finding(
            "sentinel-away",
            "weak" if states else "broken",
            where,
            promise="With fewer Sentinels a failover may find no majority, and no lock is taken.",
            found=f"no answer from {', '.join(away)}",
            mend="start them, or take them out of dlock_url",
        )
    for place, state in states.items():
        known, quorum = 1 + int(state["num-other-sentinels"]), int(state["quorum"])
        if known < FEWEST:
            yield Finding(
                "sentinel-few",
                "weak",
                f"Sentinel {place}",
                promise="When one of them is gone together with the master there is no majority "
                "for a failover, and no lock is taken.",
                found=f"{known} Sentinels for {name}",
                mend="run three Sentinels on three hosts",
            )
        if quorum > known:
            yield Finding(
                "sentinel-quorum",
                "broken",
                f"Sentinel {place}",
                promise="There will be no failover: when the master is gone no lock is taken.",
                found=f"quorum {quorum}, and {known} Sentinels",
                mend=f"SENTINEL SET {name} quorum {known // 2 + 1} on every Sentinel",
            )


def _told(host: str, port: int, name: str, driver: Mapping[str, Any]) -> Any:
    """The state that one Sentinel tells of the master, or the error."""
    options: dict[str, Any] = {**pool_options(BRIEF), **driver.get("sentinel_kwargs", {})}
    client: Any = redis.Redis(host=host, port=port, **options)
    with closing(client):
        try:
            return client.sentinel_master(name)
        except (redis.RedisError, OSError) as exc:
            return exc


def _replicas(settings: Settings, master: Server) -> Iterator[Any]:
    """A client of each server that follows *master*, as it would be reached once it is promoted."""
    servers = Servers.of(settings.url, SENTINEL_PORT)
    given = {**pool_options(brief(settings.backend_options)), **servers.options}
    options = {name: value for name, value in given.items() if name != "sentinel_kwargs"}
    for follower in master.followers:
        client: Any = redis.Redis(host=follower["ip"], port=follower["port"], **options)
        with closing(client):
            yield client
