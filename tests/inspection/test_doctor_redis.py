"""What the doctor finds in a Redis that keeps locks: each bad configuration is one for real."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import judged
from celery_dlock.ops.doctor.redis import SERVER, Server
from tests.inspection.patients import bad, found, patient
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

GOOD = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    """A master, and a server to follow it."""
    require("redis")
    with RedisServer() as one, RedisServer() as other:
        yield [one, other]


@pytest.fixture
def server(servers: list[RedisServer]) -> RedisServer:
    """A server of which nothing is found."""
    configure(servers[0], **GOOD)
    return servers[0]


def configure(server: RedisServer, **settings: str) -> None:
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


def follow(replica: RedisServer, master: RedisServer | None) -> None:
    with replica.client() as client:
        to = ["127.0.0.1", master.port] if master else ["NO", "ONE"]
        client.execute_command("REPLICAOF", *to)


@pytest.fixture
def replica(servers: list[RedisServer], server: RedisServer) -> Iterator[RedisServer]:
    """A server that follows the other one."""
    configure(servers[1], **GOOD)
    follow(servers[1], server)
    until("it follows", lambda: "online" in str(server.info("replication").get("slave0")))
    yield servers[1]
    follow(servers[1], None)
    until("it has left", lambda: server.info("replication")["connected_slaves"] == 0)


def test_nothing_is_found_in_a_durable_server(server: RedisServer, tmp_path: Path) -> None:
    assert found(tmp_path, dlock_url=server.url) == {}


@pytest.mark.parametrize(
    ("settings", "finding", "loses"),
    [
        ({"appendonly": "no", "appendfsync": "everysec"}, {"redis-aof": "weak"}, ""),
        ({"appendfsync": "everysec"}, {"redis-appendfsync": "weak"}, "up to a second of locks"),
        (
            {"appendfsync": "no"},
            {"redis-appendfsync": "weak"},
            "as much as the kernel had not written of locks",
        ),
        (
            {"maxmemory_policy": "allkeys-lru", "maxmemory": "50mb"},
            {"redis-eviction": "broken"},
            "When the memory is full",
        ),
        (
            {"maxmemory_policy": "volatile-ttl", "maxmemory": "50mb"},
            {"redis-eviction": "broken"},
            "",
        ),
        (
            {"maxmemory_policy": "allkeys-lru"},
            {"redis-eviction": "weak"},
            "Once a maxmemory is set and the memory is full",
        ),
        ({"maxmemory": "50mb"}, {}, ""),
    ],
)
def test_a_setting_that_loses_data_is_found_and_how_much_it_loses(
    server: RedisServer,
    tmp_path: Path,
    settings: dict[str, str],
    finding: dict[str, str],
    loses: str,
) -> None:
    configure(server, **settings)

    with patient(tmp_path, dlock_url=server.url) as app:
        findings = examine(app)

    assert bad(findings) == finding
    assert all(loses in each.promise for each in findings)


def test_a_cache_beside_the_locks_is_named(server: RedisServer, tmp_path: Path) -> None:
    configure(server, **{"maxmemory-policy": "allkeys-lru", "maxmemory": "50mb"})
    with patient(tmp_path, dlock_url=server.url) as app, server.client() as client:
        client.flushall()
        client.set("a lock", "held")
        (alone,) = examine(app)
        client.execute_command("SELECT", 3)
        client.set("a page", "cached")
        (beside,) = examine(app)

    assert alone.found == "maxmemory-policy allkeys-lru, maxmemory 52428800"
    assert beside.found.endswith("it has data in db0, db3")
    assert "a server of its own" in beside.fix


@pytest.mark.parametrize(
    ("follows", "conf", "finding"),
    [
        (False, {}, {"redis-replicas": "weak"}),
        (False, {"dlock_wait_replicas": 1}, {}),
        (False, {"dlock_wait_replicas": 2}, {"redis-too-few-replicas": "broken"}),
        (True, {}, {"redis-role": "broken"}),
    ],
)
def test_a_master_that_waits_for_too_few_or_too_many_and_a_replica_in_its_place_are_found(
    server: RedisServer,
    replica: RedisServer,
    tmp_path: Path,
    follows: bool,
    conf: dict[str, Any],
    finding: dict[str, str],
) -> None:
    url = replica.url if follows else server.url

    assert found(tmp_path, dlock_url=url, **conf) == finding


@pytest.mark.parametrize(
    ("hidden", "finding"),
    [("-config", {"redis-config": "unknown"}), ("-info", {"no-answer": "unknown"})],
)
def test_a_server_that_does_not_tell_all_is_no_error(
    server: RedisServer, tmp_path: Path, hidden: str, finding: dict[str, str]
) -> None:
    """Nor is the user's password shown, which the server quotes to nobody but the doctor has."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">hunter2", "~*", "+@all", hidden)
    url = f"redis://shop:hunter2@127.0.0.1:{server.port}/0"

    with patient(tmp_path, dlock_url=url) as app:
        findings = examine(app)

    assert bad(findings) == finding
    assert "hunter2" not in str(findings)


@pytest.mark.parametrize(("ahead", "how"), [(90.0, "behind"), (-90.0, "ahead of")])
def test_a_clock_that_differs_is_found(
    server: RedisServer, tmp_path: Path, ahead: float, how: str
) -> None:
    """The server's is real; this host's is off."""
    with patient(tmp_path, dlock_url=server.url) as app:
        (finding,) = examine(app, lambda: time.time() + ahead)

    assert (finding.check, finding.severity) == ("clock-skew", "weak")
    assert f"s {how} this host's" in finding.found


def test_a_slow_answer_says_little_of_a_clock(server: RedisServer, tmp_path: Path) -> None:
    """It was given at some instant between the two looks."""
    looks = iter([-90.0, 90.0])

    with patient(tmp_path, dlock_url=server.url) as app:
        assert examine(app, lambda: time.time() + next(looks)) == []


def test_an_old_server_is_found(server: RedisServer) -> None:
    """It is told that it is old: none that is would run here."""
    with server.client() as client:
        read = Server.read(client, time.time)

    assert not list(judged(SERVER, read, "store"))
    for version in ("6.0.16", "5.0"):
        old = replace(read, info={**read.info, "redis_version": version})
        assert bad(list(judged(SERVER, old, "store"))) == {"redis-version": "broken"}
