"""What the doctor finds where Redis has replicas: among Sentinels, and in a Cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.ops.doctor.examine import examine
from tests.inspection.patients import comes_to, configured, found, patient
from tests.services.ports import free_ports
from tests.services.redis import RedisServer
from tests.services.redis_cluster import RedisCluster, tell
from tests.services.redis_sentinel import NAME, RedisSentinel, Sentinel
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

INFO = ("CLUSTER", "INFO")
KEEPS = {"appendonly": "yes", "appendfsync": "always"}
SOUND = {**KEEPS, "min_replicas_to_write": "1"}
WAITS: dict[str, Any] = {"dlock_wait_replicas": 1}


@pytest.mark.parametrize(
    ("servers", "conf", "finding"),
    [
        (KEEPS, {}, {"redis-replicas": "weak", "redis-min-replicas": "weak"}),
        (SOUND, {}, {"redis-replicas": "weak"}),
        (SOUND, WAITS, {}),
        ({"min_replicas_to_write": "1"}, WAITS, {"redis-aof": "weak"}),
        (SOUND, {**WAITS, "task": {"fenced": True}}, {"tasks-fencing": "weak"}),
    ],
)
def test_a_master_that_may_forget_or_go_on_alone_is_found(
    redis_sentinel: RedisSentinel,
    tmp_path: Path,
    servers: dict[str, str],
    conf: dict[str, Any],
    finding: dict[str, str],
) -> None:
    with configured(*redis_sentinel.servers, **servers):
        names = comes_to(finding, lambda: found(tmp_path, dlock_url=redis_sentinel.url, **conf))

    assert names == finding


def skewed(folder: Path, url: str) -> list[str]:
    """What kind of server each finding is about while this host's clock is put on."""
    with patient(folder, dlock_url=url, **WAITS) as app:
        findings = examine(app, lambda: time.time() + 90)
    return sorted(f"{f.check} {f.where.split()[0]}" for f in findings)


def test_the_clock_of_whoever_may_be_promoted_counts(
    redis_sentinel: RedisSentinel, redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    replica, store, master = (f"clock-skew {kind}" for kind in ("replica", "store", "master"))
    three, six = [replica, replica, store], [*[master] * 3, *[replica] * 3]
    with configured(*redis_sentinel.servers, **SOUND):
        of_sentinels = comes_to(three, lambda: skewed(tmp_path, redis_sentinel.url))
    with configured(*redis_cluster.servers, **KEEPS):
        of_cluster = comes_to(six, lambda: skewed(tmp_path, redis_cluster.url))

    assert of_sentinels == three
    assert of_cluster == six


def test_a_silent_sentinel_is_found(redis_sentinel: RedisSentinel, tmp_path: Path) -> None:
    (gone,) = free_ports(1)
    url = redis_sentinel.url.replace(f"/{NAME}", f",127.0.0.1:{gone}/{NAME}")
    away = {"sentinel-unavailable": "weak"}
    with configured(*redis_sentinel.servers, **SOUND):
        names = comes_to(away, lambda: found(tmp_path, dlock_url=url, **WAITS))

    assert names == away


def test_one_sentinel_and_a_master_alone_are_found(tmp_path: Path) -> None:
    keeps = ("--appendonly", "yes", "--appendfsync", "always", "--min-replicas-to-write", "1")
    with RedisServer(*keeps) as master, Sentinel(master.port) as sentinel:
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{NAME}/0"
        assert found(tmp_path, dlock_url=url) == {
            "sentinel-quorum": "broken",
            "sentinel-few": "weak",
            "redis-no-replica": "weak",
        }


def test_masters_that_wait_for_none_are_found(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    def places() -> list[str]:
        with patient(tmp_path, dlock_url=redis_cluster.url) as app:
            findings = examine(app)
        return sorted({f"{finding.check} {finding.where.split()[0]}" for finding in findings})

    each = ["redis-replicas master"]
    with configured(*redis_cluster.servers, **KEEPS):
        assert comes_to(each, places) == each
        nothing: dict[str, str] = {}
        waiting = comes_to(nothing, lambda: found(tmp_path, dlock_url=redis_cluster.url, **WAITS))

    assert waiting == nothing


def test_a_clusters_forgetful_master_is_found(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    master = redis_cluster.master_of("any")
    careless = [master, redis_cluster.replica_of(master)]
    others = [server for server in redis_cluster.servers if server not in careless]
    forgets = [("redis-aof", "weak", True)]

    def seen() -> list[tuple[str, str, bool]]:
        with patient(tmp_path, dlock_url=redis_cluster.url, **WAITS) as app:
            findings = examine(app)
        theirs = [f"master 127.0.0.1:{server.port}" for server in careless]
        return [(f.check, f.severity, f.where in theirs) for f in findings]

    with configured(*others, **KEEPS):
        assert comes_to(forgets, seen) == forgets


def test_a_cluster_of_one_master_with_half_of_the_slots_is_found(tmp_path: Path) -> None:
    with RedisServer("--cluster-enabled", "yes", "--appendonly", "yes") as server:
        tell(server, "CLUSTER", "ADDSLOTS", *range(8192))
        until("it has them", lambda: b"slots_assigned:8192" in bytes(tell(server, *INFO)))
        url = f"redis+cluster://127.0.0.1:{server.port}"
        assert found(tmp_path, dlock_url=url) == {
            "cluster-slots": "broken",
            "cluster-few-masters": "weak",
            "redis-no-replica": "weak",
            "redis-appendfsync": "weak",
        }
