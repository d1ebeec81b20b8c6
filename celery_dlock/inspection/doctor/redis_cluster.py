"""The store on a Redis Cluster: what concerns each master, and the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from celery_dlock.backends.redis_map import session_of_cluster
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.clock import Clock
from celery_dlock.inspection.doctor.finding import Finding, asked
from celery_dlock.inspection.doctor.place import place_of
from celery_dlock.inspection.doctor.redis import brief, copied, one_store
from celery_dlock.inspection.doctor.redis_server import Server, replica_on_time
from celery_dlock.settings import Settings

FEWEST = 3
SLOTS = 16384


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
            promise="Keys in slots that nobody serves cannot be locked; with "
            "cluster-require-full-coverage no key can.",
            found=f"{served} of {SLOTS} slots have a master",
            mend="start the masters that had them; only if those are gone for good, with what they "
            "knew: redis-cli --cluster fix host:port",
        )
    if len(masters) < FEWEST:
        yield Finding(
            "cluster-few-masters",
            "weak",
            where,
            promise="When a master is gone there is no majority for a failover: its keys cannot be "
            "locked.",
            found=f"{len(masters)} masters",
            mend="run three masters or more, each with a replica (redis-cli --cluster add-node)",
        )


def _master(client: Any, settings: Settings, where: str, clock: Clock) -> Iterator[Finding]:
    server = Server.read(client, clock)
    yield from one_store(server, where)
    yield from copied(server, where, settings.wait_replicas)
    if not server.replicas:
        yield Finding(
            "redis-no-replica",
            "weak",
            where,
            promise="When this master is gone nothing takes its place: its keys cannot be locked.",
            found="no connected replica",
            mend="redis-cli --cluster add-node … --cluster-slave",
        )
