"""Redis as a store and as the broker, read and not changed: one server, masters that others replace
by Sentinels, and those of a Cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

import redis

from celery_dlock.ops.doctor.finding import (
    Case,
    Clock,
    Finding,
    Offset,
    asked,
    measured,
    on_time,
    place_of,
)
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

#: What a server's clock means for tasks.
CLOCK = (
    "Countdowns, expires and max_wait come too early or too late on one of the hosts, and tokens "
    "may go backwards when another server takes over."
)

#: What the store waits for if it is not told otherwise: a doctor waits no longer.
BRIEF = {"socket_timeout": ANSWER_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT}

#: Of the configuration, what INFO does not tell. Nothing else is asked for: it has passwords.
_ASKED = ("appendfsync", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class Server:
    """One server: what INFO tells, what CONFIG tells, and by how much its clock is ahead.

    ``refused`` is why CONFIG tells nothing, if it does not.
    """

    info: Mapping[str, Any]
    config: Mapping[str, str]
    offset: Offset
    refused: str = ""

    @classmethod
    def read(cls, client: Any, clock: Clock) -> Self:
        """Ask the server of redis-py's *client*. Raises what redis-py raises."""
        told: dict[str, Any] = client.info()
        offset = measured(clock, lambda: _seconds(client.time()))
        config: dict[str, str] = {}
        try:
            for name in _ASKED:
                config |= client.config_get(name)
        except redis.ResponseError as exc:
            return cls(told, config, offset, str(exc))
        return cls(told, config, offset)

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", str(self.info["redis_version"]))[:3]))

    @property
    def replicas(self) -> int:
        """How many follow it at the moment."""
        return int(self.info.get("connected_slaves", 0))

    @property
    def followers(self) -> list[Mapping[str, Any]]:
        """``ip`` and ``port`` of each of them."""
        return [self.info[f"slave{number}"] for number in range(self.replicas)]

    @property
    def keeps_log(self) -> bool:
        return bool(self.info["aof_enabled"])

    def evicts(self, kept: Kept) -> bool:
        policy = str(self.info["maxmemory_policy"])
        return policy.startswith("allkeys-") or (kept.expires and policy != "noeviction")


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

#: A check of one server.
Check = Callable[[Server, str, Kept], Iterator[Finding]]


def well_kept(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    """What is wrong with *server*, which keeps *kept*."""
    for check in (_role, _log, _sync, _eviction):
        yield from check(server, where, kept)


def new_enough(server: Server, where: str) -> Iterator[Finding]:
    if server.version < OLDEST:
        yield Finding(
            "redis-version",
            "broken",
            where,
            promise="The store's scripts are refused, so no lock is ever taken.",
            found=f"version {server.info['redis_version']}",
            fix="run Redis 6.2 or later",
        )


def replica_on_time(client: Any, where: str, clock: Clock) -> Iterator[Finding]:
    """The clock of a server that may be promoted, which redis-py's *client* speaks to."""
    yield from on_time(measured(clock, lambda: _seconds(client.time())), where, CLOCK)


def _role(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if server.info["role"] != "master":
        yield Finding(
            "redis-role",
            "broken",
            where,
            promise=f"Writes are refused here, or overwritten by the master: no {kept.what} are "
            "kept.",
            found=f"a replica of {server.info.get('master_host')}:{server.info.get('master_port')}",
            fix="name the master in the URL, or the Sentinels that know it",
        )


def _log(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if not server.keeps_log:
        yield Finding(
            "redis-aof",
            "weak",
            where,
            promise=f"A restart loses {kept.what}: {kept.forgotten}.",
            found="appendonly no",
            fix="CONFIG SET appendonly yes, and the same in redis.conf",
        )


def _sync(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if not server.keeps_log:
        return
    sync = server.config.get("appendfsync")
    if sync is None:
        yield Finding(
            "redis-config",
            "unknown",
            where,
            promise=f"It is not known how many {kept.what} a power cut loses.",
            found=f"CONFIG GET appendfsync is not answered: {server.refused}",
            fix="allow it for the user (ACL SETUSER … +config|get), or check redis.conf",
        )
    elif sync != "always":
        lost = "up to a second" if sync == "everysec" else "as much as the kernel had not written"
        yield Finding(
            "redis-appendfsync",
            "weak",
            where,
            promise=f"A power cut loses {lost} of {kept.what}: {kept.forgotten}.",
            found=f"appendfsync {sync}",
            fix="CONFIG SET appendfsync always, and the same in redis.conf (each write then waits "
            "for the disk)",
        )


def _eviction(server: Server, where: str, kept: Kept) -> Iterator[Finding]:
    if not server.evicts(kept):
        return
    policy, limit = server.info["maxmemory_policy"], int(server.info["maxmemory"])
    others = [name for name in server.info if re.fullmatch(r"db\d+", name)]
    beside = f"; it has data in {', '.join(others)}" if len(others) > 1 else ""
    yield Finding(
        "redis-eviction",
        "broken" if limit else "weak",
        where,
        promise=f"{'When' if limit else 'Once a maxmemory is set and'} the memory is full, it "
        f"evicts {kept.what}: {kept.forgotten}.",
        found=f"maxmemory-policy {policy}, maxmemory {limit}{beside}",
        fix="CONFIG SET maxmemory-policy noeviction, and the same in redis.conf; a cache needs a "
        "server of its own, because this applies to all databases of a server",
    )


def _seconds(told: tuple[int, int]) -> float:
    return told[0] + told[1] / 1e6


def examine_redis(case: Case) -> Iterator[Finding]:
    """``redis://``, ``rediss://`` and ``redis+unix://``."""
    where = f"store {place_of(case.settings.url)}"
    driver = brief(case.settings.backend_options)
    with closing(session_of(case.settings.url, driver)) as session, session:
        server = Server.read(session.client, case.clock)
    yield from one_store(server, where)
    yield from copied(server, where, case.settings.wait_replicas)


def brief(driver: Mapping[str, Any]) -> dict[str, Any]:
    """redis-py's options *driver*, with no more time to answer than is usual."""
    return {**driver, **BRIEF}


def one_store(server: Server, where: str) -> Iterator[Finding]:
    """What is wrong with a server that keeps locks."""
    yield from new_enough(server, where)
    yield from well_kept(server, where, LOCKS)
    yield from on_time(server.offset, where, CLOCK)


def copied(server: Server, where: str, copies: Copies | None) -> Iterator[Finding]:
    """Whether a hold is known to the replicas of the master *server* before its body starts."""
    if copies is None:
        if server.replicas:
            yield Finding(
                "redis-replicas",
                "weak",
                where,
                promise="A replica that is promoted may not know who holds a key: a second task "
                "starts beside the first, and parked messages are lost.",
                found=f"{server.replicas} connected replicas, and dlock_wait_replicas is not set",
                fix="dlock_wait_replicas = 1, and two replicas: while none is connected no lock is "
                "taken",
            )
    elif server.replicas < copies.replicas:
        yield Finding(
            "redis-too-few-replicas",
            "broken",
            where,
            promise="No lock is taken: a lock counts only when so many replicas have it.",
            found=f"dlock_wait_replicas asks for {copies.replicas}, "
            f"{server.replicas} are connected",
            fix=f"start more replicas, or dlock_wait_replicas = {server.replicas or None}",
        )


def examine_redis_broker(case: Case, url: str, where: str) -> Iterator[Finding]:
    """The broker at *url*."""
    tls = case.conf.broker_use_ssl
    options = brief(tls if isinstance(tls, dict) else {})
    with closing(session_of(for_redis_py(url), options)) as session, session:
        server = Server.read(session.client, case.clock)
    yield from well_kept(server, where, MESSAGES)
    yield from on_time(server.offset, where, CLOCK)
    yield from _shared_database(case, url, where)


def _shared_database(case: Case, url: str, where: str) -> Iterator[Finding]:
    if database(url) == database(case.settings.url):
        yield Finding(
            "broker-shared-database",
            "weak",
            where,
            promise="Emptying the broker (FLUSHDB) releases every lock, and loses parked messages.",
            found="dlock_url names the same database",
            fix="give the locks a database of their own: another number at the end of dlock_url",
        )


def for_redis_py(url: str) -> str:
    """*url*, with what kombu has other words for."""
    return re.sub(r"(?<=ssl_cert_reqs=)CERT_\w+", lambda word: word[0][5:].lower(), url)


def database(url: str) -> tuple[str | None, int, str] | None:
    """Host, port and number of a database; ``None`` for a URL that names another thing."""
    if url.partition("://")[0] not in ("redis", "rediss", "valkey", "valkeys"):
        return None
    parts = urlsplit(url)
    return parts.hostname, parts.port or 6379, parts.path.strip("/") or "0"


#: Sentinels, and masters of a cluster, of which one may be lost.
FEWEST = 3

SLOTS = 16384


def examine_sentinel(case: Case) -> Iterator[Finding]:
    """``redis+sentinel://``."""
    servers = Servers.of(case.settings.url, SENTINEL_PORT)
    name = servers.path.partition("/")[0]
    where = f"store {name}, of the Sentinels at {servers}"
    yield from asked(where, _watch(servers, name, case.settings.backend_options, where))
    yield from asked(where, _watched(case.settings, where, case.clock))


def _watched(settings: Settings, where: str, clock: Clock) -> Iterator[Finding]:
    options = replace(settings.options, driver=brief(settings.backend_options))
    with closing(session_of_sentinels(settings.url, options)) as session, session:
        server = Server.read(session.client, clock)
    yield from _one_master(server, settings, where, "and no lock is taken")
    for client in _replicas(settings, server):
        at = "replica {host}:{port}".format(**client.get_connection_kwargs())
        yield from asked(at, replica_on_time(client, at, clock))
    if server.config.get("min-replicas-to-write") == "0":
        yield Finding(
            "redis-min-replicas",
            "weak",
            where,
            promise="A master that is cut off goes on granting locks beside the one that replaced "
            "it: two tasks hold one key.",
            found="min-replicas-to-write 0",
            fix="CONFIG SET min-replicas-to-write 1 on every server, and the same in redis.conf; "
            "have two replicas, because without one nothing is written",
        )


def _watch(servers: Servers, name: str, driver: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """What the Sentinels say of themselves."""
    told = {f"{host}:{port}": _told(host, port, name, driver) for host, port in servers.addresses}
    missing = [place for place, state in told.items() if isinstance(state, Exception)]
    states = {place: s for place, s in told.items() if not isinstance(s, Exception)}
    if missing:
        yield Finding(
            "sentinel-unavailable",
            "weak" if states else "broken",
            where,
            promise="With fewer Sentinels a failover may find no majority: then no lock is taken.",
            found=f"no answer from {', '.join(missing)}",
            fix="start them, or remove them from dlock_url",
        )
    for place, state in states.items():
        known, quorum = 1 + int(state["num-other-sentinels"]), int(state["quorum"])
        if known < FEWEST:
            yield Finding(
                "sentinel-few",
                "weak",
                f"Sentinel {place}",
                promise="If one of them is lost together with the master there is no majority for "
                "a failover, and no lock is taken.",
                found=f"{known} Sentinels for {name}",
                fix="run three Sentinels on three hosts",
            )
        if quorum > known:
            yield Finding(
                "sentinel-quorum",
                "broken",
                f"Sentinel {place}",
                promise="There will be no failover: if the master is lost no lock is taken.",
                found=f"quorum {quorum}, and {known} Sentinels",
                fix=f"SENTINEL SET {name} quorum {known // 2 + 1} on every Sentinel",
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


def examine_cluster(case: Case) -> Iterator[Finding]:
    """``redis+cluster://``."""
    where = f"store, the cluster of {place_of(case.settings.url)}"
    driver = brief(case.settings.backend_options)
    with closing(session_of_cluster(case.settings.url, driver)) as session:
        with session:
            session.each([("EXISTS", case.settings.key_prefix)])  # draws the map
            cluster = session.client
            masters = cluster.get_primaries()
        yield from asked(where, _slots(cluster, masters, where))
        for node in masters:
            at = f"master {node.name}"
            client = cluster.get_redis_connection(node)
            yield from asked(at, _master(client, case.settings, at, case.clock))
        for node in cluster.get_replicas():
            at = f"replica {node.name}"
            client = cluster.get_redis_connection(node)
            yield from asked(at, replica_on_time(client, at, case.clock))


def _slots(cluster: Any, masters: list[Any], where: str) -> Iterator[Finding]:
    served = len(cluster.nodes_manager.slots_cache)
    if served < SLOTS:
        yield Finding(
            "cluster-slots",
            "broken",
            where,
            promise="Keys in slots without a master cannot be locked; with "
            "cluster-require-full-coverage no key can.",
            found=f"{served} of {SLOTS} slots have a master",
            fix="start the masters that had them. If those and their data are lost for good: "
            "redis-cli --cluster fix host:port",
        )
    if len(masters) < FEWEST:
        yield Finding(
            "cluster-few-masters",
            "weak",
            where,
            promise="If a master is lost there is no majority for a failover: its keys cannot be "
            "locked.",
            found=f"{len(masters)} masters",
            fix="run three masters or more, each with a replica (redis-cli --cluster add-node)",
        )


def _master(client: Any, settings: Settings, where: str, clock: Clock) -> Iterator[Finding]:
    server = Server.read(client, clock)
    yield from _one_master(server, settings, where, "and its keys cannot be locked")


def _one_master(server: Server, settings: Settings, where: str, then: str) -> Iterator[Finding]:
    """What is wrong with a master; *then* is what happens when nothing takes its place."""
    yield from one_store(server, where)
    yield from copied(server, where, settings.wait_replicas)
    if not server.replicas:
        yield Finding(
            "redis-no-replica",
            "weak",
            where,
            promise=f"If this master is lost no replica takes its place, {then}.",
            found="no connected replica",
            fix="start a replica of it: REPLICAOF, in a cluster redis-cli --cluster add-node … "
            "--cluster-slave",
        )
