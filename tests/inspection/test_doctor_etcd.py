"""What the doctor finds in an etcd.

It counts what was ever written there, so no test here looks at the server of the whole run.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_dlock.ops.doctor import etcd
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import judged
from tests.inspection.patients import bad, comes_to, found, patient
from tests.services.etcd import EtcdServer
from tests.services.etcd_cluster import EtcdCluster

pytestmark = pytest.mark.server("etcd")

EVEN = {"etcd-even": "weak"}


@pytest.fixture(autouse=True)
def _no_matter_which_version(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is installed may be old. One that is there may be slow."""
    monkeypatch.setattr(etcd, "MEMBER_TIMEOUT", 60.0)
    if "version" not in request.node.name:
        monkeypatch.delitem(etcd.CLUSTER, "etcd-version")


def put(server: EtcdServer, value: bytes) -> None:
    def coded(text: bytes) -> str:
        return base64.b64encode(text).decode()

    server.ask("kv/put", key=coded(b"large"), value=coded(value))


@contextmanager
def members(count: int) -> Iterator[list[EtcdServer]]:
    """A cluster of so many."""
    servers = [EtcdServer(name=f"m{number}") for number in range(count)]
    try:
        for server in servers:
            server.joins(tuple(servers))
            server.begin()
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.stop()


def test_one_member_is_found(own_etcd_server: EtcdServer, tmp_path: Path) -> None:
    assert found(tmp_path, dlock_url=own_etcd_server.url) == {"etcd-single": "weak"}


def test_two_members_are_found(tmp_path: Path) -> None:
    with members(2) as servers:
        url = "etcd://" + ",".join(server.address for server in servers)
        names = comes_to(EVEN, lambda: found(tmp_path, dlock_url=url))
    assert names == EVEN


def test_nothing_is_found_until_one_is_gone(own_etcd_cluster: EtcdCluster, tmp_path: Path) -> None:
    def seen() -> list[tuple[str, str, str]]:
        with patient(tmp_path, dlock_url=own_etcd_cluster.url) as app:
            return [(f.check, f.severity, f.found) for f in examine(app)]

    nothing: list[tuple[str, str, str]] = []
    assert comes_to(nothing, seen) == nothing
    gone = own_etcd_cluster.followers()[0]
    gone.kill()
    away = [("etcd-unavailable", "weak", f"no answer from {gone.address}")]
    assert comes_to(away, seen) == away


def test_an_alarm_is_found(tmp_path: Path) -> None:
    with EtcdServer() as server:
        alarm = {"memberID": 0, "alarm": "NOSPACE"}
        server.ask("maintenance/alarm", action="ACTIVATE", **alarm)
        raised = found(tmp_path, dlock_url=server.url)
        server.ask("maintenance/alarm", action="DEACTIVATE", **alarm)
        quiet = found(tmp_path, dlock_url=server.url)

    assert raised == {"etcd-alarm": "broken", "etcd-single": "weak"}
    assert quiet == {"etcd-single": "weak"}


@pytest.mark.parametrize(("unsafe", "finding"), [("true", {"etcd-fsync": "broken"}), ("false", {})])
def test_a_member_that_does_not_wait_for_its_disk_is_found(
    tmp_path: Path, unsafe: str, finding: dict[str, str]
) -> None:
    """Some of its log has to have been written."""
    with EtcdServer(f"--unsafe-no-fsync={unsafe}") as server:
        for _ in range(4):
            put(server, b"-" * 1_000_000)

        assert found(tmp_path, dlock_url=server.url) == {"etcd-single": "weak", **finding}


def test_uncompacted_revisions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EtcdServer() as server:
        for _ in range(20):
            put(server, b"")
        few = found(tmp_path, dlock_url=server.url)
        monkeypatch.setattr(etcd, "PILED_UP", 10)
        many = found(tmp_path, dlock_url=server.url)
        server.ask("kv/compaction", revision=5)
        compacted = found(tmp_path, dlock_url=server.url)

    assert few == {"etcd-single": "weak"}
    assert many == {"etcd-single": "weak", "etcd-compaction": "weak"}
    assert compacted == {"etcd-single": "weak"}


@pytest.mark.parametrize("ahead", [90.0, -90.0])
def test_a_clock_that_differs_is_found(
    own_etcd_server: EtcdServer, tmp_path: Path, ahead: float
) -> None:
    off = found(tmp_path, dlock_url=own_etcd_server.url, clock=lambda: time.time() + ahead)

    assert off == {"clock-skew": "weak", "etcd-single": "weak"}


def test_the_version_that_answers_is_looked_at(own_etcd_server: EtcdServer, tmp_path: Path) -> None:
    text = own_etcd_server.ask("maintenance/status")["version"]
    known = {finding.check for finding in judged(etcd.CLUSTER, etcd.Cluster(version=text), "store")}

    assert set(found(tmp_path, dlock_url=own_etcd_server.url)) == {"etcd-single", *known}


@pytest.mark.parametrize(
    ("text", "severities"),
    [
        ("3.3.27", ["broken"]),
        ("3.4.23", ["weak"]),
        ("3.4.31", []),
        ("3.5.12", ["weak"]),
        ("3.5.13", []),
        ("3.6.0", []),
    ],
)
def test_a_version_whose_leader_ends_leases_by_mistake_is_found(
    text: str, severities: list[str]
) -> None:
    findings = list(judged(etcd.CLUSTER, etcd.Cluster(version=text), "store"))

    assert [finding.severity for finding in findings] == severities
    assert all(finding.check == "etcd-version" for finding in findings)


@pytest.mark.parametrize(("prefix", "written"), [("dlock", "dlock/"), ("a/b", "a!2fb/")])
def test_who_may_use_the_prefix_sees_the_rest(tmp_path: Path, prefix: str, written: str) -> None:
    """A user of the store need not be root for the doctor to see what there is."""
    with EtcdServer() as server:
        server.lets_in("hunter2", written)

        url = f"etcd://worker:hunter2@{server.address}"
        as_worker = found(tmp_path, dlock_url=url, dlock_key_prefix=prefix)
        with patient(tmp_path, dlock_url=url, dlock_key_prefix="another") as app:
            elsewhere = examine(app)

    assert as_worker == {"etcd-single": "weak"}
    assert bad(elsewhere) == {"etcd-single": "weak", "no-answer": "unknown"}
    assert "hunter2" not in str(elsewhere)
