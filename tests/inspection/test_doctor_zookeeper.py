"""What the doctor finds in a ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.ops.doctor import zookeeper
from celery_dlock.ops.doctor.examine import examine
from tests.inspection.patients import bad, comes_to, found, patient
from tests.services.ports import free_ports
from tests.services.zookeeper import TICK, ZooKeeperServer
from tests.services.zookeeper_ensemble import ZooKeeperEnsemble

pytestmark = pytest.mark.server("zookeeper")

#: Seconds, of which the servers of the tests grant no more.
LONGEST = 20 * TICK / 1000


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is there may be slow."""
    monkeypatch.setattr(zookeeper, "SERVERS_TIMEOUT", 60.0)


def test_one_server_is_found(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    alone = found(tmp_path, dlock_url=zookeeper_server.url, dlock_ttl=LONGEST)

    assert alone == {"zookeeper-single": "weak"}


@pytest.mark.parametrize(
    ("asked", "granted", "meaning", "fix"),
    [
        (30, "10", "a shorter pause", "maxSessionTimeout=30000 in zoo.cfg of every server, or "),
        (0.5, "1", "free later", ""),
    ],
)
def test_a_session_that_lasts_for_another_time_is_found(
    zookeeper_server: ZooKeeperServer,
    tmp_path: Path,
    asked: float,
    granted: str,
    meaning: str,
    fix: str,
) -> None:
    with patient(tmp_path, dlock_url=zookeeper_server.url, dlock_ttl=asked) as app:
        session, alone = examine(app)

    assert (session.check, session.severity) == ("zookeeper-session-timeout", "weak")
    assert f"a session of {granted} s is granted" in session.found
    assert meaning in session.promise
    assert session.fix == f"{fix}dlock_ttl = {granted}"
    assert alone.check == "zookeeper-single"


def test_a_task_that_asks_for_less_than_the_session_is_found(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    conf: dict[str, Any] = {"dlock_url": zookeeper_server.url, "dlock_ttl": LONGEST}
    with patient(tmp_path, {"lock_ttl": 3}, **conf) as app:
        shorter, alone = examine(app)

    assert (shorter.check, shorter.severity) == ("zookeeper-shared-ttl", "weak")
    assert shorter.found == "a shorter ttl of charge"
    assert alone.check == "zookeeper-single"


def test_a_task_that_asks_for_more_than_is_granted_keeps_workers_from_starting(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    with patient(tmp_path, {"lock_ttl": LONGEST + 1}, dlock_url=zookeeper_server.url) as app:
        (refused,) = examine(app)

    assert (refused.check, refused.severity) == ("settings", "broken")
    assert refused.found.startswith("task charge: ttl=11 is more than the lock store grants")


def test_a_server_that_is_gone_is_found(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    (gone,) = free_ports(1)
    both = f"zookeeper://shop:hunter2@{zookeeper_server.address},127.0.0.1:{gone}"
    with patient(tmp_path, dlock_url=both, dlock_ttl=LONGEST) as app:
        findings = examine(app)
    assert bad(findings) == {"zookeeper-unavailable": "weak", "zookeeper-single": "weak"}
    assert "hunter2" not in str(findings)


@pytest.mark.slow
def test_nothing_is_found_in_three_servers_until_one_is_gone(
    own_zookeeper_ensemble: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    conf: dict[str, Any] = {"dlock_url": own_zookeeper_ensemble.url, "dlock_ttl": LONGEST}

    nothing: dict[str, str] = {}
    assert comes_to(nothing, lambda: found(tmp_path, **conf)) == nothing
    own_zookeeper_ensemble.followers()[0].kill()
    away = {"zookeeper-unavailable": "weak"}
    assert comes_to(away, lambda: found(tmp_path, **conf)) == away


@contextmanager
def two_servers() -> Iterator[str]:
    """An ensemble of two; its URL."""
    quorum, election = free_ports(2), free_ports(2)
    members = [ZooKeeperServer(initLimit=20, syncLimit=20) for _ in range(2)]
    try:
        for number, member in enumerate(members):
            member.number = number + 1
            member.options |= {
                f"server.{n + 1}": f"127.0.0.1:{quorum[n]}:{election[n]}" for n in range(2)
            }
            member.begin()
        for member in members:
            member.wait()
        yield "zookeeper://" + ",".join(member.address for member in members)
    finally:
        for member in members:
            member.stop()


@pytest.mark.slow
def test_an_even_number_is_found(tmp_path: Path) -> None:
    with two_servers() as url:
        even = {"zookeeper-even": "weak"}
        names = comes_to(even, lambda: found(tmp_path, dlock_url=url, dlock_ttl=LONGEST))
    assert names == even
