from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Claim
from celery_dlock.locks.current import holding
from example_project.events.stage import Stage
from tests.services.until import until


def enter(stage: Stage, event_id: str, token: int = 7) -> threading.Thread:
    def body() -> None:
        claim = Claim("order:7", task="t:0:0", nonce="n", ttl=30_000_000)
        with holding(Lease((Term(claim, 0, token, 0.0),), "strict")):
            stage.enter(event_id)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_an_event_that_is_not_held_passes(stage: Stage) -> None:
    stage.hold("7-002")
    enter(stage, "7-001").join(60)
    assert stage.standing("7-001") is None


def test_the_first_run_of_a_held_event_stands_and_says_who_it_is(stage: Stage) -> None:
    stage.hold("7-001")
    first = enter(stage, "7-001")
    standing = until("it stands", lambda: stage.standing("7-001"))
    assert standing is not None
    assert (standing.pid, standing.group, standing.token) == (os.getpid(), os.getpgrp(), 7)
    assert first.is_alive()
    # A second run of the same event passes, and the first still stands.
    second = enter(stage, "7-001", token=8)
    second.join(60)
    assert not second.is_alive()
    assert first.is_alive()
    # Released, it goes on.
    stage.release("7-001")
    first.join(60)
    assert not first.is_alive()
