"""A soft time limit at each instant of a delivery: what has failed by it does not run later.

Nor is anything left of it in the store that holds up others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from celery_dlock import FullJitter, Limit, LockedTask, Queue, Reschedule, StaleFencingToken, lock
from celery_dlock.core import turns
from celery_dlock.delivery import carry_out, execution, leaving, plan, publish, taking, unique
from celery_dlock.locks import hold
from celery_dlock.locks import unique as claims
from celery_dlock.policies import Policy
from tests.services.desk import Desk, open_desk
from tests.services.instants import in_a_thread_of_its_own, struck

FILES = {m.__file__ for m in (carry_out, execution, hold, leaving, plan, publish, taking)}
UNIQUE = FILES | {unique.__file__, claims.__file__}
KEYS = ["a", "b"]
LIMITS = [Limit("a", 2), Limit("b", 3)]

pytestmark = pytest.mark.slow

Ran = list[int]
Send = Callable[[], object]
Deliver = Callable[[], object]
#: Publishes the task, brings it to where it is to be struck, and delivers it.
Scenario = Callable[[Desk, Send, Deliver], None]


def is_refused(desk: Desk, send: Send, deliver: Deliver) -> None:
    with lock("b", app=desk.app, timeout=0):
        send()
        deliver()


def is_woken(desk: Desk, send: Send, deliver: Deliver) -> None:
    with lock("b", app=desk.app, timeout=0):
        send()
        desk.deliver()
    deliver()


def at_once() -> int:
    if at_once in _away:
        raise OSError("the table of limits does not answer")
    return 2


_away: set[Callable[[], int]] = set()


def keeps_its_turn(desk: Desk, send: Send, deliver: Deliver) -> None:
    desk.patch.setattr(turns, "WAKE_AGAIN_FIRST", 0)
    with lock("b", app=desk.app, timeout=0):
        send()
        desk.deliver()
    _away.add(at_once)
    deliver()
    _away.clear()


def runs(desk: Desk, send: Send, deliver: Deliver) -> None:
    send()
    deliver()


@contextmanager
def opened(
    policy: Policy, *, loses: bool = False, key: Any = KEYS, **options: Any
) -> Iterator[tuple[Desk, Ran, LockedTask]]:
    """A desk with a task that, if it *loses* its lock, does so in its first run."""
    with open_desk() as desk:
        ran: Ran = []

        @desk.locked(key, name="charge", on_contention=policy, acks_late=True, **options)
        def charge() -> None:
            ran.append(1)
            if loses and len(ran) == 1:
                raise StaleFencingToken("a", 1, 2)

        yield desk, ran, charge


@pytest.mark.parametrize(
    ("scenario", "policy", "options"),
    [
        (is_refused, Queue(), {}),
        (is_refused, Queue(), {"track_started": True}),
        (is_refused, Reschedule(backoff=FullJitter(base=0.01, cap=0.01)), {}),
        (is_woken, Queue(), {}),
        (runs, Queue(), {"loses": True}),
        (is_refused, Queue(), {"key": LIMITS}),
        (is_woken, Queue(), {"key": LIMITS}),
        (keeps_its_turn, Queue(), {"key": Limit("b", at_once)}),
    ],
    ids=[
        *("it is parked", "it looks and is parked", "it is rescheduled", "it was woken"),
        *("it is put back", "it is parked at a limit", "it was woken at a limit"),
        "it keeps its turn without a limit",
    ],
)
@in_a_thread_of_its_own
def test_at_whatever_instant_the_limit_strikes_a_failure_is_final(
    scenario: Scenario, policy: Policy, options: dict[str, Any]
) -> None:
    instants = 0
    while _struck_at(instants + 1, scenario, policy, **options):
        instants += 1
    assert instants > 50


def _struck_at(number: int, scenario: Scenario, policy: Policy, **options: Any) -> bool:
    """Whether the delivery has a *number*-th instant; it was struck there, and all is well."""
    with opened(policy, **options) as (desk, ran, charge):
        strikes: list[bool] = []
        results: list[Any] = []

        def deliver() -> None:
            message = desk.receive()
            limit = SoftTimeLimitExceeded
            strikes.append(struck(lambda: desk.run(message), number, FILES, limit))

        scenario(desk, lambda: results.append(charge.delay()), deliver)
        state, before = results[0].state, len(ran)
        desk.deliver_all()
        if state in ("SUCCESS", "FAILURE"):
            assert len(ran) == before
        else:
            assert results[0].state == "SUCCESS"
        nothing_is_left(desk)
        return strikes[0]


def nothing_is_left(desk: Desk) -> None:
    """What a limit has left held in the dispatch of a signal goes when the thread has another."""

    @desk.locked("other", name="other")
    def other() -> None: ...

    other.delay()
    desk.deliver()
    for key in KEYS:
        left = desk.store.peek(key)
        assert (left.holders, left.grants, left.waiting) == ((), (), ())


@pytest.mark.parametrize("until", ["done", "start"])
@in_a_thread_of_its_own
def test_no_strike_blocks_a_unique_tasks_calls(until: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
    instants = 0
    while _unique_struck_at(instants + 1, until):
        instants += 1
    assert instants > 50


def _unique_struck_at(number: int, until: str) -> bool:
    with opened(Queue(), unique=until) as (desk, ran, charge):
        charge.delay()
        message = desk.receive()
        strikes = struck(lambda: desk.run(message), number, UNIQUE, SoftTimeLimitExceeded)
        desk.deliver_all()
        nothing_is_left(desk)

        # What is said of one that has ended is published under its id, and dropped
        for _ in range(2):
            charge.delay()
            desk.deliver_all()
        before = len(ran)
        assert not charge.delay().is_duplicate
        desk.deliver_all()
        assert len(ran) == before + 1
        return strikes
