"""What a worker does that ships is checked against the model's, and a drift of either is noticed.

``tests/simulation`` follows each delivery that it plays (its ``ways.py``).
"""

from __future__ import annotations

from unittest import mock

import pytest

from celery_dlock.core.state import Claim, Left, Outcome, Run, WaitMode
from tests.model import workers
from tests.model.config import Task
from tests.model.follow import Follower, Seen
from tests.model.world import ACK, CALLBACKS, EFFECT, RESULT

CLAIM = Claim("k", "t", "n", ttl=1, wait=WaitMode.QUEUE, done_ttl=1)

#: What a delivery of a task does that queues.
WAY = (
    Seen("deliver"),
    Seen("enter: Run", CLAIM, verdict=Run(0, 1)),
    Seen("effect of"),
    Seen("callbacks of"),
    Seen("result of"),
    Seen("leave done: Left", CLAIM, Outcome.DONE, Left(carried=True)),
    Seen("ack"),
)


def wrong(*way: Seen) -> int | None:
    """The first step that the worker of the model cannot take."""
    follower = Follower(Task(), early_ack=False, cooldown=False, woken=False)
    return next((n for n, seen in enumerate(way) if follower.step(seen)), None)


def test_what_the_model_does_is_followed() -> None:
    assert wrong(*WAY) is None


@pytest.mark.parametrize("lacking", range(1, len(WAY) - 1))
def test_no_step_may_be_left_out(lacking: int) -> None:
    assert wrong(*WAY[:lacking], *WAY[lacking + 1 :]) == lacking


def test_what_is_asked_for_is_what_the_model_asks_for() -> None:
    place = Claim("k", "t", "n", ttl=1, wait=WaitMode.PLACE, patience=1)

    assert wrong(WAY[0], Seen("enter: Run", place, verdict=Run(0, 1))) == 1


def test_a_drift_of_the_model_is_noticed() -> None:
    before_the_callbacks = {EFFECT: RESULT, RESULT: CALLBACKS, CALLBACKS: ACK}

    with mock.patch.dict(workers.AFTER, before_the_callbacks):
        assert wrong(*WAY) == 3
