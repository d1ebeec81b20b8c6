"""What the commands say and do, for code."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock import BackendUnavailable, operate
from celery_dlock.core.state import Drop, NotHeld, Reason, Renewed, WaitMode
from celery_dlock.core.unique import UniqueClaim
from tests.cli.operator import Operator, operator


def test_it_says_who_has_a_key_and_who_waits(desk: Operator) -> None:
    desk.hold("order:42", "first")
    desk.park("order:42", "second", "third")

    (held,) = operate.held("order:42", app=desk.app)
    waiting = operate.waiting("order:42", app=desk.app)

    assert held.task_id == "first"
    assert [entry.task_id for entry in waiting] == ["second", "third"]
    assert [e.task_id for e in operate.waiting("order:42", app=desk.app, limit=1)] == ["second"]
    assert operate.held("order:43", app=desk.app) == ()


def test_only_the_holder_that_was_named_is_released(desk: Operator) -> None:
    claim = desk.hold("order:42", "first")
    desk.park("order:42", "second")
    (held,) = operate.held("order:42", app=desk.app)

    assert operate.release("order:42", held, app=desk.app)
    assert desk.woken() == [("second", None)]
    assert isinstance(desk.backend.renew([claim])[0], NotHeld)

    other = desk.hold("order:43", "another")
    assert not operate.release("order:43", held, app=desk.app)
    assert isinstance(desk.backend.renew([other])[0], Renewed)


def test_a_task_that_waits_is_cancelled(desk: Operator) -> None:
    desk.hold("order:42", "first")
    desk.park("order:42", "second")

    assert operate.cancel("second", app=desk.app)
    assert desk.woken() == [("second", "revoked")]
    assert not operate.cancel("first", app=desk.app)


def test_a_dead_letter_is_discarded_and_its_unique_claim_ends(desk: Operator) -> None:
    desk.dead_letter("order:42", "dead")
    claim = UniqueClaim("dead:0:0", "charge", "host:1", heard=0.0)
    desk.backend.swap("charge(42)", None, claim.encode(), 60_000_000)

    assert operate.discard("dead", by="ann", app=desk.app)

    assert (desk.backend.dead(), desk.backend.swapped()) == ([], [])
    assert not operate.discard("dead", app=desk.app)
    copy = desk.claim("order:42", "dead", wait=WaitMode.QUEUE)
    assert desk.backend.enter(copy, b"message").verdict == Drop(Reason.DONE)


def test_where_there_is_no_store_that_is_said(tmp_path: Path) -> None:
    with (
        operator(dlock_url=f"sqlite:///{tmp_path / 'none.db'}") as desk,
        pytest.raises(BackendUnavailable),
    ):
        operate.held("order:42", app=desk.app)
