"""The store on independent servers: each of them, and whether they are independent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import redis

from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops.doctor.finding import (
    NO_ANSWER,
    Broken,
    Case,
    Checks,
    Clock,
    Finding,
    Weak,
    judged,
)
from celery_dlock.ops.doctor.redis import SERVER, Server, brief
from celery_dlock.ops.doctor.shared import Members, Offset, cluster
from celery_dlock.stores.redis.client import RedisSession
from celery_dlock.stores.redlock.node import Nodes
from celery_dlock.stores.redlock.votes import majority_of

_MEANING = (
    "Fewer other nodes may be lost before no lock is taken.",
    "No majority answers, and no lock is taken.",
)


def _no_majority(nodes: Members) -> bool:
    return len(nodes.answering) < majority_of(len(nodes.named))


NODES: Checks[Members] = {
    "redlock-unavailable": Weak(
        lambda nodes: nodes.missing and (nodes.missing, _MEANING[_no_majority(nodes)]),
        "no answer from {0[0]}",
        promise="{0[1]}",
        fix="start these nodes; remove a node from dlock_url only in all processes at once",
        broken=_no_majority,
    ),
    "redlock-even": cluster("redlock")["redlock-even"],
}

#: Of the names of one server: it has as many votes.
SAME: Checks[Sequence[str]] = {
    "redlock-same-server": Broken(
        lambda names: len(names) > 1,
        "they are one server: INFO shows the same run_id",
        promise="One server has several votes: if it forgets, a majority may forget, and two tasks "
        "hold one key.",
        fix="name each server in dlock_url once",
    )
}

#: Of a node, and of the one with the queue; another that forgets is told before it votes again.
NODE = {name: SERVER[name] for name in ("redis-version", "redis-role", "redis-eviction")}
QUEUE = {name: row for name, row in SERVER.items() if name != "redis-replicas"}

FOLLOWED: Checks[Server] = {
    "redlock-replicas": Weak(
        lambda server: server.replicas,
        "{} replicas follow it",
        promise="A replica that takes the node's place may not know its votes: two tasks hold one "
        "key.",
        fix="remove the replicas: nodes of a Redlock are independent and must not fail over",
    )
}

#: Of the clock of a node against that of the first, which is named.
CLOCKS: Checks[tuple[Offset, str]] = {
    "redlock-clocks": Weak(
        lambda clocks: clocks[0].wrong and clocks,
        "its clock is {0[0]} that of {0[1]}",
        promise="Once all nodes have forgotten, tokens may go backwards.",
        fix="run NTP (chrony, systemd-timesyncd) on every node",
    )
}


def examine_redlock(case: Case) -> Iterator[Finding]:
    """``redlock://``."""
    nodes = Nodes.of(case.settings.url, brief(case.settings.backend_options), case.settings.ttl)
    places = [f"{options['host']}:{options['port']}" for options in nodes.options]
    servers: dict[str, Server] = {}
    refusing: list[str] = []
    for place, options in zip(places, nodes.options, strict=True):
        try:
            servers[place] = _read(nodes, options, place, case.clock)
        except BackendUnavailable as exc:
            if isinstance(exc.__cause__, redis.ResponseError):
                refusing.append(place)
                yield from judged(NO_ANSWER, exc, f"node {place}")
    store_place = f"store {','.join(places)}"
    yield from judged(NODES, Members(places, [*servers, *refusing], len(places)), store_place)
    runs: defaultdict[str, list[str]] = defaultdict(list)
    for place, server in servers.items():
        runs[str(server.info["run_id"])].append(place)
    for names in runs.values():
        yield from judged(SAME, names, f"nodes {', '.join(names)}")
    for place, server in servers.items():
        if place == places[nodes.queue]:
            yield from judged(QUEUE, server, f"queue's node {place}")
        else:
            yield from judged(NODE, server, f"node {place}")
        yield from judged(FOLLOWED, server, f"node {place}")
    first, *others = servers or [""]
    for place in others:
        offset = servers[place].offset.against(servers[first].offset)
        yield from judged(CLOCKS, (offset, first), f"node {place}")


def _read(nodes: Nodes, options: Mapping[str, Any], place: str, clock: Clock) -> Server:
    """Raises :exc:`~celery_dlock.BackendUnavailable` where it does not answer, or refuses."""
    pool = redis.ConnectionPool(connection_class=nodes.connection, **options)
    session = RedisSession(redis.Redis(connection_pool=pool), place, [options.get("password")])
    with closing(session), session:
        return Server.read(session.client, clock)
