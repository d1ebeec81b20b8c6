"""What the doctor finds among the nodes of a Redlock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_dlock.ops.doctor.examine import examine
from tests.inspection.patients import bad, configured, found, patient
from tests.services.ports import free_ports
from tests.services.redis_nodes import RedisNodes, redlock_url, running_nodes
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

KEEPS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisNodes]:
    """Three, of which nothing is found."""
    with running_nodes(3, *KEEPS) as nodes:
        yield nodes


def test_nothing_is_found_among_three_nodes(nodes: RedisNodes, tmp_path: Path) -> None:
    assert found(tmp_path, dlock_url=nodes.url) == {}


def test_two_nodes_are_found_before_a_worker_does(nodes: RedisNodes, tmp_path: Path) -> None:
    two = redlock_url([node.port for node in nodes[:2]])

    with patient(tmp_path, dlock_url=two) as app:
        (finding,) = examine(app)

    assert (finding.check, finding.severity) == ("settings", "broken")
    assert "app 'patient': redlock:// needs at least three nodes" in finding.found


def test_two_names_of_one_server_are_found(nodes: RedisNodes, tmp_path: Path) -> None:
    one, other, _ = (node.port for node in nodes)
    twice = f"redlock://127.0.0.1:{one},localhost:{one},127.0.0.1:{other}/0"

    with patient(tmp_path, dlock_url=twice) as app:
        (finding,) = examine(app)

    assert (finding.check, finding.severity) == ("redlock-same-server", "broken")
    assert finding.where == f"nodes 127.0.0.1:{one}, localhost:{one}"


def test_nodes_that_do_not_answer_are_found(nodes: RedisNodes, tmp_path: Path) -> None:
    here, gone = [node.port for node in nodes], free_ports(3)

    with patient(tmp_path, dlock_url=redlock_url([*here[:2], gone[0]])) as app:
        (one_gone,) = examine(app)
    with patient(tmp_path, dlock_url=redlock_url([*here[:2], *gone])) as app:
        (most_gone,) = examine(app)

    assert bad([one_gone]) == {"redlock-unavailable": "weak"}
    assert one_gone.promise.startswith("Fewer other nodes")
    assert bad([most_gone]) == {"redlock-unavailable": "broken"}
    assert most_gone.promise == "No majority answers, and no lock is taken."


def test_an_even_number_is_found(nodes: RedisNodes, tmp_path: Path) -> None:
    four = redlock_url([*(node.port for node in nodes), *free_ports(1)])

    assert found(tmp_path, dlock_url=four) == {
        "redlock-even": "weak",
        "redlock-unavailable": "weak",
    }


def test_only_the_queues_node_has_to_keep_a_log(nodes: RedisNodes, tmp_path: Path) -> None:
    first, second, third = nodes
    with configured(second, appendonly="no"):
        assert found(tmp_path, dlock_url=nodes.url) == {}
        queued = redlock_url([second.port, first.port, third.port])
        assert found(tmp_path, dlock_url=queued) == {"redis-aof": "weak"}


def test_every_node_must_not_evict(nodes: RedisNodes, tmp_path: Path) -> None:
    evicts = {"maxmemory_policy": "allkeys-lru", "maxmemory": "50mb"}
    with configured(nodes[2], **evicts), patient(tmp_path, dlock_url=nodes.url) as app:
        (finding,) = examine(app)

    assert (finding.check, finding.severity) == ("redis-eviction", "broken")
    assert finding.where == f"node 127.0.0.1:{nodes[2].port}"


def test_a_node_with_a_replica_is_found(nodes: RedisNodes, tmp_path: Path) -> None:
    with running_nodes(1, "--replicaof", "127.0.0.1", str(nodes[1].port)):
        until("it follows", lambda: nodes[1].info("replication")["connected_slaves"] == 1)
        assert found(tmp_path, dlock_url=nodes.url) == {"redlock-replicas": "weak"}
    until("it has left", lambda: nodes[1].info("replication")["connected_slaves"] == 0)


def test_a_node_whose_clock_differs_is_found(nodes: RedisNodes, tmp_path: Path) -> None:
    """This host's clock is put on after two looks, at the first node: so the others are behind."""
    looks = 0

    def stepping() -> float:
        nonlocal looks
        looks += 1
        return time.time() + (90 if looks > 2 else 0)

    with patient(tmp_path, dlock_url=nodes.url) as app:
        findings = examine(app, stepping)

    assert bad(findings) == {"redlock-clocks": "weak"}
    assert {f.where for f in findings} == {f"node 127.0.0.1:{node.port}" for node in nodes[1:]}


@pytest.mark.parametrize(
    ("refused", "asked"),
    [("time", True), ("evalsha", False), ("eval", False)],
)
def test_nodes_that_refuse_a_command_are_not_said_to_be_silent(
    nodes: RedisNodes, tmp_path: Path, refused: str, asked: bool
) -> None:
    rules = ("reset", "on", ">hunter2", "~*", "+@all", f"-{refused}")
    for node in nodes:
        with node.client() as client:
            client.script_flush()
            client.execute_command("ACL", "SETUSER", "shop", *rules)
    url = nodes.url.replace("://", "://shop:hunter2@")
    with patient(tmp_path, dlock_url=url) as app:
        findings = examine(app)

    unanswered = {"no-answer": "unknown"} if asked else {}
    assert bad(findings) == {"store-lock": "broken", **unanswered}
    assert all(f"refuses {refused.upper()}" in finding.found for finding in findings)
    assert all(f"ACL SETUSER … +{refused}" in finding.fix for finding in findings)
