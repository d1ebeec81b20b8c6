"""The store on independent servers: each of them, and whether they are independent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import redis

from celery_dlock.ops.doctor.finding import Case, Clock, Finding, quorum_size
from celery_dlock.ops.doctor.redis import (
    LOCKS,
    Server,
    brief,
    new_enough,
    one_store,
    well_kept,
)
from celery_dlock.stores.redlock.node import Nodes
from celery_dlock.stores.redlock.votes import majority_of

#: What a node that forgets does no harm with: it is told by the others before it votes again.
_OF_ONE_NODE = {"redis-aof", "redis-appendfsync", "redis-config"}


def examine_redlock(case: Case) -> Iterator[Finding]:
    """``redlock://``."""
    nodes = Nodes.of(case.settings.url, brief(case.settings.backend_options), case.settings.ttl)
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
    missing = [place for place in places if place not in servers]
    if missing:
        lost = len(servers) < majority_of(size)
        yield Finding(
            "redlock-unavailable",
            "broken" if lost else "weak",
            where,
            promise="No majority answers, and no lock is taken."
            if lost
            else "Fewer other nodes may be lost before no lock is taken.",
            found=f"no answer from {', '.join(missing)}",
            fix="start these nodes; remove a node from dlock_url only in all processes at once",
        )
    yield from quorum_size("redlock", size, where)


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
                promise="One server has several votes: if it forgets, a majority may forget, and "
                "two tasks hold one key.",
                found="they are one server: INFO shows the same run_id",
                fix="name each server in dlock_url once",
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
            fix="remove the replicas: nodes of a Redlock are independent and must not fail over",
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
                fix="run NTP (chrony, systemd-timesyncd) on every node",
            )
