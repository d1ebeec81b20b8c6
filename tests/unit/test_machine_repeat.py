"""A message that goes back to the head of the queue is the only thing its task has there."""

from __future__ import annotations

from celery_dlock.core import machine
from celery_dlock.core.state import Claim, KeyState, Outcome, WaitMode

SECOND = 1_000_000


def _claim(task: str, nonce: str, wait: WaitMode = WaitMode.NOT) -> Claim:
    return Claim("k", task, nonce, 9 * SECOND, wait=wait, patience=2 * SECOND)


def _held_with_a_place_for_b() -> KeyState:
    state = machine.enter(KeyState(), _claim("a", "1"), now=0, token=1).state
    return machine.enter(state, _claim("b", "1", WaitMode.PLACE), now=0).state


def test_it_survives_the_place_that_another_delivery_of_its_task_had() -> None:
    # Given a task whose second delivery has a place, while the first one lost its lease
    state = _held_with_a_place_for_b()
    # When the first asks to be repeated, and the time of the place is over
    state = machine.leave(state, _claim("b", "0", WaitMode.QUEUE), Outcome.REPEAT, now=1).state
    step = machine.leave(state, _claim("a", "1"), Outcome.OVER, now=3 * SECOND)
    # Then its message is woken
    assert [turn.task for turn in step.wakes] == ["b"]
    assert step.state.waiting == ()


def test_it_replaces_the_turn_that_another_delivery_of_its_task_had() -> None:
    # Given a task whose second delivery has its turn, reserved because a message waits behind it
    state = _held_with_a_place_for_b()
    state = machine.enter(state, _claim("c", "1", WaitMode.QUEUE), now=0).state
    state = machine.leave(state, _claim("a", "1"), Outcome.OVER, now=1).state
    assert [grant.task for grant in state.grants] == ["b"]
    # When the first, whose lease was lost, asks to be repeated
    step = machine.leave(state, _claim("b", "0", WaitMode.QUEUE), Outcome.REPEAT, now=2)
    # Then the turn is the message's
    assert [turn.task for turn in step.wakes] == ["b"]
    assert [(grant.task, grant.parked) for grant in step.state.grants] == [("b", True)]
