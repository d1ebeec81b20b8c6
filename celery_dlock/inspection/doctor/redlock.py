"""The store on independent servers: each of them, and whether they are independent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import redis

from celery_dlock.backends.redlock_url import Nodes
from celery_dlock.backends.redlock_votes import majority_of
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.clock import Clock
from celery_dlock.inspection.doctor.finding import Finding
from celery_dlock.inspection.doctor.redis import brief, one_store
from celery_dlock.inspection.doctor.redis_server import LOCKS, Server, new_enough, well_kept

#: What a node that forgets does no harm with: it is told by the others before it votes again.
_OF_ONE_NODE = {"redis-aof", "redis-appendfsync", "redis-config"}


def examine_redlock(case: Case) -> Iterator[Finding]:
    """``redlock://``."""
    nodes = Nodes.of(case.settings.url, brief(case.settings.backend_options))
    places = [f"{each['host']}:{each['port']}" for each in nodes.options]
    told = [_read(nodes, each, case.clock) for each in nodes.options]
    servers = {p: s for p, s in zip(places, told, strict=True) if isinstance(s, Server)}
    yield from _votes(places, servers)
    yield from _same(servers)
    for place, server in servers.items():
        if place == places[nodes.queue]:
            yield from one_store(server, f"queue's node {place}")
        else:
            yield from new_enough(server, f"node {place}")
            found = well_kept(server, f"node {place}", LOCKS)
            yield from (each for each in found if each.check not in _OF_ONE_NODE)
        yield from _followed(server, place)
    yield from _clocks(servers)


def _read(nodes: Nodes, options: Mapping[str, Any], clock: Clock) -> Server | Exception:
    pool = redis.ConnectionPool(connection_class=nodes.connection, **options)
    try:
        return Server.read(redis.Redis(connection_pool=pool), clock)
    except (redis.RedisError, OSError) as exc:
        return exc
    finally:
        pool.disconnect()


def _votes(places: list[str], servers: Mapping[str, Server]) -> Iterator[Finding]:
    size = len(places)
    where = f"store {','.join(places)}"
    away = [place for place in places if place not in servers]
    if away:
        lost = len(servers) < majority_of(size)
        yield Finding(
            "redlock-away",
            "broken" if lost else "weak",
            where,
            promise="No majority answers, and no lock is taken."
            if lost
            else "Fewer other nodes may be lost until no lock is taken.",
            found=f"no answer from {', '.join(away)}",
            mend="start these nodes; take a node out of dlock_url only in all processes at once",
        )
    if size % 2 == 0:
        yield Finding(
            "redlock-even",
            "weak",
            where,
            promise=f"{size} nodes bear the loss of no more of them than {size - 1} do.",
            found=f"{size} nodes",
            mend="add a node to dlock_url, or take one out",
        )


def _same(servers: Mapping[str, Server]) -> Iterator[Finding]:
    """Two names of one server: it has two votes."""
    runs: defaultdict[str, list[str]] = defaultdict(list)
    for place, server in servers.items():
        runs[str(server.info["run_id"])].append(place)
    for names in runs.values():
        if len(names) > 1:
            yield Finding(
                "redlock-same-server",
                "broken",
                f"nodes {', '.join(names)}",
                promise="One server has several votes: what it forgets, a majority may forget, and "
                "two tasks hold one key.",
                found="they are one server: INFO tells the same run_id",
                mend="name each server in dlock_url once",
            )


def _followed(server: Server, place: str) -> Iterator[Finding]:
    if server.replicas:
        yield Finding(
            "redlock-replicas",
            "weak",
            f"node {place}",
            promise="A replica that takes the node's place may not know its votes: two tasks hold "
            "one key.",
            found=f"{server.replicas} replicas follow it",
            mend="let no failover happen: nodes of a Redlock are independent and have no replicas",
        )


def _clocks(servers: Mapping[str, Server]) -> Iterator[Finding]:
    """The nodes against each other: the first is the one that others are compared with."""
    first, *others = servers or [""]
    for place in others:
        offset = servers[place].offset.against(servers[first].offset)
        if offset.wrong:
            yield Finding(
                "redlock-clocks",
                "weak",
                f"node {place}",
                promise="Once all nodes have forgotten, tokens may go backwards.",
                found=f"its clock is {offset} that of {first}",
                mend="run NTP (chrony, systemd-timesyncd) on every node",
            )
