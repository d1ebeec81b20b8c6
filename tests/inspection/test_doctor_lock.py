"""The doctor's own lock: over every store, and over a Redis that refuses a command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.operations import Operation
from celery_dlock.core.state import Busy, KeyState, Run
from celery_dlock.locks.probe import DOCTORS
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import Finding
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend, Reply
from tests.inspection.patients import patient
from tests.services.redis import RedisServer
from tests.services.stores import EVERY, Store


def tried(app: Any, **options: Any) -> list[Finding]:
    return [finding for finding in examine(app, **options) if finding.check == "store-lock"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[Operation[Any], Any]:
    """What a store is asked for, with its verdicts."""
    verdicts: dict[Operation[Any], Any] = {}

    def watch(backend: LockBackend) -> None:
        apply = backend.apply

        def noted(operation: Operation[Any]) -> Reply[Any]:
            reply = apply(operation)
            verdicts[operation] = reply.verdict
            return reply

        monkeypatch.setattr(backend, "apply", noted)

    monkeypatch.setattr("celery_dlock.ops.doctor.lock.runtime", lambda app: _watched(app, watch))
    return verdicts


def _watched(app: Any, watch: Any) -> Any:
    here = runtime(app)
    watch(here.backend)
    return here


@pytest.mark.parametrize("store", EVERY)
def test_a_lock_is_taken_waited_for_and_released_and_leaves_nothing(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    store: Store,
    asked: dict[Operation[Any], Any],
) -> None:
    accepted = "what is broken and accepted keeps nobody from trying"
    waived = dict.fromkeys(("postgresql-fsync", "etcd-fsync"), accepted)
    conf = {**store.settings(request, tmp_path), "dlock_doctor_ignore": waived}
    with patient(tmp_path, worker_pool="threads", **conf) as app:
        backend = runtime(app).backend
        if backend.missing():
            backend.sweep()  # makes its tables

        assert tried(app, read_only=True) == []
        assert not asked
        assert tried(app) == []

        verdicts = Counter(type(verdict) for verdict in asked.values())
        assert {operation.claim.key for operation in asked} == {DOCTORS}
        assert (verdicts[Run], verdicts[Busy]) == (2, 1)
        assert backend.peek(DOCTORS) == KeyState()


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    with patient(tmp_path, dlock_url=f"sqlite:///{file}") as app:
        assert tried(app) == []

    assert not file.exists()


@pytest.fixture
def user(redis_server: RedisServer) -> Iterator[str]:
    with redis_server.client() as client:
        yield "doctors"
        client.execute_command("ACL", "DELUSER", "doctors")


@pytest.mark.server("redis")
@pytest.mark.parametrize(
    ("refused", "command", "ways"),
    [
        (["-time"], "TIME", 2),
        (["-evalsha"], "EVALSHA", 2),
        (["-eval"], "EVAL", 2),
        (["-hexists"], "HEXISTS", 1),  # the first alone
        (["-zadd"], "ZADD", 1),  # the second alone
        (["-info", "-evalsha"], "EVALSHA", 2),
    ],
)
def test_a_command_that_a_redis_refuses_is_named_with_the_right_to_grant(
    redis_server: RedisServer,
    user: str,
    tmp_path: Path,
    refused: list[str],
    command: str,
    ways: int,
) -> None:
    with redis_server.client() as client:
        client.script_flush()
        rules = ("reset", "on", ">hunter2", "~*", "+@all", *refused)
        client.execute_command("ACL", "SETUSER", user, *rules)
    url = f"redis://{user}:hunter2@127.0.0.1:{redis_server.port}/0"
    with patient(tmp_path, dlock_url=url) as app:
        findings = tried(app)

    assert [finding.severity for finding in findings] == ["broken"] * ways
    assert all(f"refuses {command}: " in finding.found for finding in findings)
    assert all(f"ACL SETUSER … +{command.lower()})" in finding.fix for finding in findings)
    assert "hunter2" not in str(findings)
