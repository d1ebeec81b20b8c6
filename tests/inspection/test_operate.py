"""What the commands say and do, for code."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock import BackendUnavailable, ConfigurationError, operate
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Drop, NotHeld, Outcome, Reason, Renewed, WaitMode
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


def test_the_key_of_a_beat_is_not_released(desk: Operator) -> None:
    desk.hold("dlock:beat:shop", "beat@host")
    (leads,) = operate.held("dlock:beat:shop", app=desk.app)

    with pytest.raises(ConfigurationError, match="dlock beat --step-down"):
        operate.release("dlock:beat:shop", leads, app=desk.app)
    with pytest.raises(ConfigurationError, match="dlock beat --step-down"):
        operate.hold("dlock:beat:shop", 60, because="why", app=desk.app)
    assert desk.holders("dlock:beat:shop") == ["beat@host"]


def test_a_beat_steps_down_if_another_one_stands_by(desk: Operator) -> None:
    assert not operate.step_down(app=desk.app)
    desk.hold("dlock:beat:shop", "beat@host")
    assert not operate.step_down(app=desk.app)
    standby = desk.claim("dlock:beat:shop", "other", wait=WaitMode.PLACE, patience=60 * SECOND)
    desk.backend.enter(standby)

    assert operate.step_down(app=desk.app)

    (leads,) = operate.held("dlock:beat:shop", app=desk.app)
    asked = desk.backend.notes("dlock:beat:shop:step-down")
    assert asked["to"] == leads.owner.encode()


def test_what_cools_down_is_opened(desk: Operator) -> None:
    for task in ("first", "second"):
        claim = desk.hold("tenant:7", task, limit=2, cooldown=3600 * SECOND)
        desk.backend.leave(claim, Outcome.DONE)
    desk.park("tenant:7", "waits")

    assert operate.end_cooldown("tenant:7", app=desk.app)

    assert desk.woken() == [("waits", None)]
    assert not operate.end_cooldown("tenant:7", app=desk.app)


def test_only_the_hold_that_was_named_ends(desk: Operator) -> None:
    assert operate.hold("order:42", 60, because="first", app=desk.app)
    first = operate.on_hold("order:42", app=desk.app)
    assert first is not None
    assert operate.hold("order:42", 60, because="second", instead_of=first, app=desk.app)

    assert not operate.hold("order:42", 60, because="third", instead_of=first, app=desk.app)
    assert not operate.end_hold("order:42", first, app=desk.app)
    second = operate.on_hold("order:42", app=desk.app)
    assert second is not None
    assert operate.end_hold("order:42", second, app=desk.app)
    assert operate.on_hold("order:42", app=desk.app) is None


def test_a_dead_letter_is_replayed(desk: Operator) -> None:
    desk.dead_letter("order:42", "dead")

    assert operate.replay("dead", app=desk.app)

    assert desk.woken() == [("dead", None)]
    assert not operate.replay("dead", app=desk.app)


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
