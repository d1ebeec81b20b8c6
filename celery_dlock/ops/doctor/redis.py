"""Redis as a store and as the broker, read and not changed: one server, masters that others replace
by Sentinels, and those of a Cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import redis

from celery_dlock.ops.doctor.finding import (
    Broken,
    Case,
    Checks,
    Clock,
    Finding,
    Unknown,
    Weak,
    asked,
    examined,
    judged,
    place_of,
)
from celery_dlock.ops.doctor.shared import Members, Offset, clock_skew, measured
from celery_dlock.settings import Settings
from celery_dlock.stores.base import Copies
from celery_dlock.stores.redis.client import (
    ANSWER_TIMEOUT,
    CONNECT_TIMEOUT,
    Servers,
    pool_options,
    session_of,
)
from celery_dlock.stores.redis.cluster_session import session_of_cluster
from celery_dlock.stores.redis.sentinel import SENTINEL_PORT, session_of_sentinels

OLDEST = (6, 2)

#: Sentinels, and masters of a cluster, of which one may be lost.
FEWEST = 3

SLOTS = 16384

#: What the store waits for if it is not told otherwise: a doctor waits no longer.
BRIEF = {"socket_timeout": ANSWER_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT}

#: What a power cut loses, by appendfsync.
_LOST = {"everysec": "up to a second", "no": "as much as the kernel had not written"}

#: Of the configuration, what INFO does not tell. Nothing else is asked for: it has passwords.
_ASKED = ("appendfsync", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a server keeps, and what it means for tasks when the server forgets it.

    Names that never expire are spared by policies that are called ``volatile-``.
    """

    what: str
    forgotten: str
    expires: bool


LOCKS = Kept(
    "locks",
    "a task starts beside one that still runs, parked messages are lost, and finished tasks may "
    "run again",
    expires=True,
)
MESSAGES = Kept("messages", "tasks that were sent never run", expires=False)


@dataclass(frozen=True, slots=True)
class Server:
    """What INFO and CONFIG tell, and by how much its clock is ahead; *kept* is what it is used for.

    ``refused`` is why CONFIG tells nothing, if it does not. ``copies`` is how many replicas have to
    have a lock, if any, and ``alone`` what happens if none takes its place, if one could. There are
    ``sentinels`` that may replace it.
    """

    info: Mapping[str, Any]
    config: Mapping[str, str]
    offset: Offset
    refused: str
    kept: Kept = LOCKS
    copies: Copies | None = None
    alone: str = ""
    sentinels: bool = False

    @classmethod
    def read(cls, client: Any, clock: Clock, **use: Any) -> Self:
        """Ask the server of redis-py's *client*. Raises what redis-py raises."""
        info: dict[str, Any] = {"master_host": None, "master_port": None, **client.info()}
        offset = offset_of(client, clock)
        config: dict[str, str] = {}
        refused = ""
        try:
            for name in _ASKED:
                config |= client.config_get(name)
        except redis.ResponseError as exc:
            refused = str(exc)
        return cls(info, config, offset, refused, **use)

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", str(self.info["redis_version"]))[:3]))

    @property
    def sync(self) -> str | None:
        """When it waits for the disk: empty without a log, ``None`` if it does not tell."""
        return self.config.get("appendfsync") if self.info["aof_enabled"] else ""

    @property
    def replicas(self) -> int:
        """How many follow it at the moment."""
        return int(self.info.get("connected_slaves", 0))

    @property
    def most_copies(self) -> int | None:
        return self.replicas or None

    @property
    def when_full(self) -> str:
        return "When" if self.info["maxmemory"] else "Once a maxmemory is set and"

    @property
    def evicts(self) -> bool:
        policy = str(self.info["maxmemory_policy"])
        return policy.startswith("allkeys-") or (self.kept.expires and policy != "noeviction")

    @property
    def others(self) -> str:
        """The databases that it has, if it has several."""
        names = [name for name in self.info if re.fullmatch(r"db\d+", name)]
        return f"; it has data in {', '.join(names)}" if len(names) > 1 else ""


#: Of the clock of a server that is one, or may be promoted.
CLOCK = clock_skew(
    "Countdowns, expires and max_wait come too early or too late on one of the hosts, and tokens "
    "may go backwards when another server takes over."
)

SERVER: Checks[Server] = {
    "redis-version": Broken(
        lambda server: server.kept is LOCKS and server.version < OLDEST and server.info,
        "version {0[redis_version]}",
        promise="The store's scripts are refused, so no lock is ever taken.",
        fix="run Redis 6.2 or later",
    ),
    "redis-role": Broken(
        lambda server: server.info["role"] != "master" and server,
        "a replica of {0.info[master_host]}:{0.info[master_port]}",
        promise="Writes are refused here, or overwritten by the master: no {0.kept.what} are kept.",
        fix="name the master in the URL, or the Sentinels that know it",
    ),
    "redis-aof": Weak(
        lambda server: server.sync == "" and server.kept,
        "appendonly no",
        promise="A restart loses {0.what}: {0.forgotten}.",
        fix="CONFIG SET appendonly yes, and the same in redis.conf",
    ),
    "redis-config": Unknown(
        lambda server: server.sync is None and server,
        "CONFIG GET appendfsync is not answered: {0.refused}",
        promise="It is not known how many {0.kept.what} a power cut loses.",
        fix="allow it for the user (ACL SETUSER … +config|get), or check redis.conf",
    ),
    "redis-appendfsync": Weak(
        lambda server: server.sync not in (None, "", "always") and (server, _LOST[server.sync]),
        "appendfsync {0[0].sync}",
        promise="A power cut loses {0[1]} of {0[0].kept.what}: {0[0].kept.forgotten}.",
        fix="CONFIG SET appendfsync always, and the same in redis.conf (each write then waits for "
        "the disk)",
    ),
    "redis-eviction": Weak(
        lambda server: server.evicts and server,
        "maxmemory-policy {0.info[maxmemory_policy]}, maxmemory {0.info[maxmemory]}{0.others}",
        promise="{0.when_full} the memory is full, it evicts {0.kept.what}: {0.kept.forgotten}.",
        fix="CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; a cache needs a "
        "server of its own, because this applies to all databases of a server",
        broken=lambda server: server.info["maxmemory"],
    ),
    **CLOCK,
    "redis-replicas": Weak(
        lambda server: server.kept is LOCKS and server.copies is None and server.replicas,
        "{} connected replicas, and dlock_wait_replicas is not set",
        promise="A replica that is promoted may not know who holds a key: a second task starts "
        "beside the first, and parked messages are lost.",
        fix="dlock_wait_replicas = 1, and two replicas: while none is connected no lock is taken",
    ),
    "redis-too-few-replicas": Broken(
        lambda server: server.copies and server.replicas < server.copies.replicas and server,
        "dlock_wait_replicas asks for {0.copies.replicas}, {0.replicas} are connected",
        promise="No lock is taken: a lock counts only when so many replicas have it.",
        fix="start more replicas, or dlock_wait_replicas = {0.most_copies}",
    ),
    "redis-no-replica": Weak(
        lambda server: server.alone and not server.replicas and server.alone,
        "no connected replica",
        promise="If this master is lost no replica takes its place, and {}.",
        fix="start a replica of it: REPLICAOF, in a cluster redis-cli --cluster add-node … "
        "--cluster-slave",
    ),
    "redis-min-replicas": Weak(
        lambda server: server.sentinels and server.config.get("min-replicas-to-write") == "0",
        "min-replicas-to-write 0",
        promise="A master that is cut off goes on granting locks beside the one that replaced it: "
        "two tasks hold one key.",
        fix="CONFIG SET min-replicas-to-write 1 on every server, and the same in redis.conf; have "
        "two replicas, because without one nothing is written",
    ),
}

SENTINELS: Checks[Members] = {
    "sentinel-unavailable": Weak(
        lambda sentinels: sentinels.missing,
        "no answer from {}",
        promise="With fewer Sentinels a failover may find no majority: then no lock is taken.",
        fix="start them, or remove them from dlock_url",
        broken=lambda sentinels: not sentinels.answering,
    )
}

#: Of how many Sentinels one knows of *name*, their quorum, and a majority of them.
SENTINEL: Checks[Mapping[str, Any]] = {
    "sentinel-few": Weak(
        lambda state: state["known"] < FEWEST and state,
        "{0[known]} Sentinels for {0[name]}",
        promise="If one of them is lost together with the master there is no majority for a "
        "failover, and no lock is taken.",
        fix="run three Sentinels on three hosts",
    ),
    "sentinel-quorum": Broken(
        lambda state: state["quorum"] > state["known"] and state,
        "quorum {0[quorum]}, and {0[known]} Sentinels",
        promise="There will be no failover: if the master is lost no lock is taken.",
        fix="SENTINEL SET {0[name]} quorum {0[majority]} on every Sentinel",
    ),
}

#: Of how many slots are served, and by how many masters.
CLUSTER: Checks[Mapping[str, int]] = {
    "cluster-slots": Broken(
        lambda cluster: cluster["served"] < SLOTS and cluster,
        f"{{0[served]}} of {SLOTS} slots have a master",
        promise="Keys in slots without a master cannot be locked; with "
        "cluster-require-full-coverage no key can.",
        fix="start the masters that had them. If those and their data are lost for good: redis-cli "
        "--cluster fix host:port",
    ),
    "cluster-few-masters": Weak(
        lambda cluster: cluster["masters"] < FEWEST and cluster,
        "{0[masters]} masters",
        promise="If a master is lost there is no majority for a failover: its keys cannot be "
        "locked.",
        fix="run three masters or more, each with a replica (redis-cli --cluster add-node)",
    ),
}

#: Of the URLs of the broker and the store.
SHARED: Checks[tuple[str, str]] = {
    "broker-shared-database": Weak(
        lambda urls: database(urls[0]) == database(urls[1]),
        "dlock_url names the same database",
        promise="Emptying the broker (FLUSHDB) releases every lock, and loses parked messages.",
        fix="give the locks a database of their own: another number at the end of dlock_url",
    )
}


def offset_of(client: Any, clock: Clock) -> Offset:
    """The clock of the server that redis-py's *client* speaks to."""

    def server_time() -> float:
        seconds, microseconds = client.time()
        return float(seconds + microseconds / 1e6)

    return measured(clock, server_time)


def brief(driver: Mapping[str, Any]) -> dict[str, Any]:
    """redis-py's options *driver*, with no more time to answer than is usual."""
    return {**driver, **BRIEF}


def examine_redis(case: Case) -> Iterator[Finding]:
    """``redis://``, ``rediss://`` and ``redis+unix://``."""
    place = f"store {place_of(case.settings.url)}"
    driver = brief(case.settings.backend_options)
    with closing(session_of(case.settings.url, driver)) as session, session:
        server = Server.read(session.client, case.clock, copies=case.settings.wait_replicas)
    yield from judged(SERVER, server, place)


def examine_redis_broker(case: Case, url: str, place: str) -> Iterator[Finding]:
    """The broker at *url*."""
    tls = case.conf.broker_use_ssl
    options = brief(tls if isinstance(tls, dict) else {})
    with closing(session_of(url, options)) as session, session:
        server = Server.read(session.client, case.clock, kept=MESSAGES)
    yield from judged(SERVER, server, place)
    yield from judged(SHARED, (url, case.settings.url), place)


def database(url: str) -> tuple[str | None, int, str] | None:
    """Host, port and number of a database; ``None`` for a URL that names another thing."""
    if url.partition("://")[0] not in ("redis", "rediss", "valkey", "valkeys"):
        return None
    parts = urlsplit(url)
    return parts.hostname, parts.port or 6379, parts.path.strip("/") or "0"


def examine_sentinel(case: Case) -> Iterator[Finding]:
    """``redis+sentinel://``."""
    servers = Servers.of(case.settings.url, SENTINEL_PORT)
    name = servers.path.partition("/")[0]
    place = f"store {name}, of the Sentinels at {servers}"
    yield from asked(place, _sentinels(servers, name, case.settings.backend_options, place))
    yield from asked(place, _watched(case.settings, place, case.clock))


def _watched(settings: Settings, place: str, clock: Clock) -> Iterator[Finding]:
    options = replace(settings.options, driver=brief(settings.backend_options))
    with closing(session_of_sentinels(settings.url, options)) as session, session:
        use = {"copies": settings.wait_replicas, "alone": "no lock is taken", "sentinels": True}
        server = Server.read(session.client, clock, **use)
    yield from judged(SERVER, server, place)
    for client in _replicas(settings, server):
        at = "replica {host}:{port}".format(**client.get_connection_kwargs())
        yield from examined(CLOCK, at, partial(offset_of, client, clock))


def _sentinels(
    servers: Servers, name: str, driver: Mapping[str, Any], store_place: str
) -> Iterator[Finding]:
    """What the Sentinels say of themselves."""
    states = {
        f"{host}:{port}": _state(host, port, name, driver) for host, port in servers.addresses
    }
    answering = {place: state for place, state in states.items() if state is not None}
    yield from judged(SENTINELS, Members(list(states), answering), store_place)
    for place, state in answering.items():
        number = 1 + int(state["num-other-sentinels"])
        facts = {"known": number, "quorum": int(state["quorum"]), "majority": number // 2 + 1}
        yield from judged(SENTINEL, {"name": name, **facts}, f"Sentinel {place}")


def _state(host: str, port: int, name: str, driver: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What one Sentinel tells of the master, if it answers."""
    options: dict[str, Any] = {**pool_options(BRIEF), **driver.get("sentinel_kwargs", {})}
    client: Any = redis.Redis(host=host, port=port, **options)
    with closing(client), suppress(redis.RedisError, OSError):
        state: Mapping[str, Any] = client.sentinel_master(name)
        return state
    return None


def _replicas(settings: Settings, master: Server) -> Iterator[Any]:
    """A client of each server that follows *master*, as it would be reached once it is promoted."""
    servers = Servers.of(settings.url, SENTINEL_PORT)
    given = {**pool_options(brief(settings.backend_options)), **servers.options}
    options = {name: value for name, value in given.items() if name != "sentinel_kwargs"}
    for number in range(master.replicas):
        follower = master.info[f"slave{number}"]
        client: Any = redis.Redis(host=follower["ip"], port=follower["port"], **options)
        with closing(client):
            yield client


def examine_cluster(case: Case) -> Iterator[Finding]:
    """``redis+cluster://``."""
    place = f"store, the cluster of {place_of(case.settings.url)}"
    driver = brief(case.settings.backend_options)
    with closing(session_of_cluster(case.settings.url, driver)) as session:
        with session:
            session.each([("EXISTS", case.settings.key_prefix)])  # draws the map
            cluster = session.client
            masters = cluster.get_primaries()
        facts = {"served": len(cluster.nodes_manager.slots_cache), "masters": len(masters)}
        yield from judged(CLUSTER, facts, place)
        use = {"copies": case.settings.wait_replicas, "alone": "its keys cannot be locked"}
        for node in masters:
            client = cluster.get_redis_connection(node)
            read = partial(Server.read, client, case.clock, **use)
            yield from examined(SERVER, f"master {node.name}", read)
        for node in cluster.get_replicas():
            client = cluster.get_redis_connection(node)
            at = f"replica {node.name}"
            yield from examined(CLOCK, at, partial(offset_of, client, case.clock))
