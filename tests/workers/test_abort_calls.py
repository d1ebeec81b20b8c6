"""``on_lost="abort"`` where there is no worker: plain calls, and tasks that run eagerly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import Lease, LockedTask, LockLost, lock
from celery_dlock.core.events import Lost
from celery_dlock.locks.manager import LockManager
from tests.services.desk import Desk
from tests.services.losing import lose
from tests.services.until import until


@pytest.fixture
def lose_it(desk: Desk) -> Callable[[Lease], None]:
    """Lose a lease, and stay where the strike is to come."""

    def lose_here(lease: Lease) -> None:
        lose(desk.app, lease)
        threading.Event().wait(60)

    return lose_here


def test_a_plain_call_ends_with_the_loss_and_holds_nothing(
    desk: Desk, lose_it: Callable[[Lease], None]
) -> None:
    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str, *, lease: Lease) -> None:
        lose_it(lease)

    with pytest.raises(LockLost, match="the test took it"):
        charge("42")

    assert desk.holders("order:42") == []
    until("it is told", lambda: desk.happened(Lost))


def test_a_delivery_ends_with_it_and_runs_again(
    desk: Desk, lose_it: Callable[[Lease], None]
) -> None:
    tokens: list[int] = []

    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str, *, lease: Lease) -> str:
        tokens.append(lease.fencing_token)
        if len(tokens) == 1:
            lose_it(lease)
        return "ran"

    result = charge.delay("42")
    desk.deliver()
    assert result.state == "RETRY"
    assert desk.holders("order:42") == []
    desk.deliver()

    assert result.get() == "ran"
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 2


def test_the_hook_comes_after_it(desk: Desk, lose_it: Callable[[Lease], None]) -> None:
    aborted, told = threading.Event(), threading.Event()

    class Slow(LockedTask):
        abstract = True

        def on_lock_lost(self, *_: Any) -> None:
            assert aborted.wait(60), "the body is not struck while this hook runs"
            told.set()

    @desk.locked("order:{order}", name="charge", on_lost="abort", base=Slow)
    def charge(order: str, *, lease: Lease) -> None:
        try:
            lose_it(lease)
        finally:
            aborted.set()

    charge.delay("42")
    desk.deliver()

    assert told.wait(60)


def test_a_body_whose_lease_is_lost_before_it_starts_does_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    ran: list[int] = []
    acquire = LockManager.acquire

    def acquire_and_lose_the_first(*args: Any, **options: Any) -> Any:
        taken.append(acquire(*args, **options))
        if len(taken) == 1:
            taken[0].terms[0].lose("the process was stopped")
        return taken[-1]

    monkeypatch.setattr(LockManager, "acquire", acquire_and_lose_the_first)

    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str) -> None:
        ran.append(len(taken))

    charge.delay("42")
    desk.deliver_all()

    assert ran == [2]


def test_a_task_that_the_body_runs_eagerly_is_not_struck_for_the_bodys_loss(desk: Desk) -> None:
    steps: list[str] = []

    @desk.locked("order:{order}", name="part")
    def part(order: str, outer: list[Lease]) -> str:
        lose(desk.app, outer[0])
        until("the keeper has told", lambda: desk.happened(Lost))
        steps.append("part")
        return "whole"

    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str, *, lease: Lease) -> None:
        try:
            part.apply(("43", [lease]))
            steps.append("after")
        except LockLost as error:
            steps.append(error.key)
            raise

    charge.delay("42")
    desk.deliver()

    assert steps == ["part", "order:42"]
    assert desk.holders("order:42") == desk.holders("order:43") == []


@pytest.mark.parametrize("on_lost", ["abort", "flag"])
def test_a_plain_call_under_its_callers_key_is_struck_with_its_caller_or_not_at_all(
    desk: Desk, lose_it: Callable[[Lease], None], on_lost: Any
) -> None:
    went_on: list[bool] = []

    @desk.locked("order:{order}", name="part", on_lost="abort")
    def part(order: str, *, lease: Lease) -> None:
        if on_lost == "abort":
            lose_it(lease)
        lose(desk.app, lease)
        until("the keeper has told", lambda: desk.happened(Lost))
        went_on.append(lease.lost)

    @desk.locked("order:{order}", name="charge", on_lost=on_lost)
    def charge(order: str) -> None:
        part(order)

    if on_lost == "abort":
        with pytest.raises(LockLost, match="the test took it"):
            charge("42")
    else:
        charge("42")

    assert went_on == ([] if on_lost == "abort" else [True])
    assert desk.holders("order:42") == []


@pytest.mark.parametrize("what", ["plain call", "lock()"])
def test_what_the_body_calls_is_left_in_order(
    desk: Desk, lose_it: Callable[[Lease], None], what: str
) -> None:
    @desk.locked("order:{order}", name="part", on_lost="abort")
    def part(order: str, outer: Lease) -> None:
        lose_it(outer)

    @desk.locked("order:{order}", name="charge", on_lost="abort")
    def charge(order: str, *, lease: Lease) -> None:
        if what == "plain call":
            part("43", lease)
        with lock("order:43", app=desk.app):
            lose_it(lease)

    with pytest.raises(LockLost, match="order:42"):
        charge("42")

    assert desk.holders("order:42") == desk.holders("order:43") == []
