"""What befalls a queued task over and over: outages in the worst instant, a body that rejects."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Reject

from celery_dlock import BackendUnavailable, lock
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Cause, Run
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

KEY = "order:42"


@pytest.mark.parametrize("hears", [True, False], ids=["it hears", "it does not hear"])
def test_outages_in_the_instant_in_which_the_key_is_given(
    desk: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    """Those of which the store hears that they are over count once; others are lost runs."""
    ran: list[int] = []

    @desk.locked("order:{order}", name="charge", on_contention="queue", acks_late=True)
    def charge(order: str) -> None:
        ran.append(1)

    store = runtime(desk.app).backend
    enter, leave = store.enter, store.leave

    def unheard(*args: Any) -> Any:
        assert isinstance(enter(*args).verdict, Run)
        raise BackendUnavailable("the answer was lost")

    def goes_away(*args: Any) -> Any:
        if hears:
            leave(*args)
        raise BackendUnavailable("away")

    result = charge.delay("42")
    for _ in range(MAX_LOST_RUNS):
        with monkeypatch.context() as patch:
            patch.setattr(store, "enter", unheard)
            patch.setattr(store, "leave", goes_away)
            desk.deliver()
        clock.advance(60)  # its lease ends
    desk.deliver()

    if hears:
        assert ran == [1]
        assert store.dead() == []
    else:
        # Then it is dead-lettered, where people see it, and a person lets it run
        assert ran == []
        (letter,) = store.dead()
        assert (letter.dead.cause, result.state) == (Cause.RUNS_LOST, "FAILURE")
        runtime(desk.app).wake(store.replay(KEY, letter.dead.task).wakes)
        desk.deliver()
        assert ran == [1]
    assert nothing_is_left(desk)


def test_a_body_that_rejects_for_ever_takes_every_second_turn_of_its_key_and_no_more(
    desk: Desk,
) -> None:
    ran: list[int] = []

    @desk.locked("order:{order}", name="charge", on_contention="queue", acks_late=True)
    def charge(order: str, number: int) -> None:
        ran.append(number)
        if number == 0:
            raise Reject("not now", requeue=True)

    with lock(KEY, app=desk.app, timeout=0):
        for number in range(4):
            charge.delay("42", number)
        for _ in range(4):
            desk.deliver()
    for _ in range(12):
        desk.deliver()

    others = [number for number in ran if number]
    assert others == [1, 2, 3]
    assert ran.index(3) <= 6
