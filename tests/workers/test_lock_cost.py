"""What a lock without a message asks of its store, and what is left of it after the block."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock import LockContended, LockLost, lock
from celery_dlock.core.events import Contended
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.runtime import runtime
from tests.services.desk import Desk


@pytest.fixture
def asked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the store is asked, from now on."""
    found: list[str] = []
    backend = runtime(desk.app).backend
    enter, leave = backend.enter, backend.leave

    def entering(claim: Claim, *args: Any) -> Any:
        found.append(f"enter {claim.key}")
        return enter(claim, *args)

    def leaving(claim: Claim, *args: Any) -> Any:
        found.append(f"leave {claim.key}")
        return leave(claim, *args)

    monkeypatch.setattr(backend, "enter", entering)
    monkeypatch.setattr(backend, "leave", leaving)
    return found


def test_it_is_taken_once_and_given_back_once(desk: Desk, asked: list[str]) -> None:
    with lock("k", app=desk.app):
        pass
    assert asked == ["enter k", "leave k"]


def test_one_that_is_refused_gives_nothing_back(desk: Desk, asked: list[str]) -> None:
    runtime(desk.app).backend.enter(Claim("k", "other:0:0", "nonce", ttl=9 * SECOND))
    asked.clear()
    with pytest.raises(LockContended), lock("k", app=desk.app, timeout=0):
        pytest.fail("another has it")
    assert asked == ["enter k"]


def test_that_it_waits_is_told_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = runtime(desk.app).backend
    other, enter = Claim("k", "other:0:0", "nonce", ttl=9 * SECOND), backend.enter
    enter(other)
    refused: list[Claim] = []

    def free_after_three(claim: Claim, *args: Any) -> Any:
        if len(refused) == 3:
            backend.leave(other, Outcome.OVER)
        refused.append(claim)
        return enter(claim, *args)

    monkeypatch.setattr(backend, "enter", free_after_three)
    with lock("k", app=desk.app, timeout=30):
        assert len(desk.happened(Contended)) == 1


def test_below_a_lock_that_is_lost_no_other_key_is_asked_for(desk: Desk, asked: list[str]) -> None:
    with lock("k", app=desk.app) as lease:
        lease.terms[0].lose("the process was stopped")
        asked.clear()
        with pytest.raises(LockLost), lock(["a", "k"], app=desk.app):
            pytest.fail("somebody else may have it")
        assert asked == []


def test_after_the_block_its_lease_is_not_trusted(desk: Desk) -> None:
    with lock("k", app=desk.app) as lease:
        lease.check()
    with pytest.raises(LockLost, match="released"):
        lease.check()
