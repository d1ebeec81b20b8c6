"""What the store did not hear is said again until it has heard, each once and in its order."""

from __future__ import annotations

import threading

import pytest

from celery_dlock.core.later import ENOUGH, Later
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.errors import BackendUnavailable
from tests.services.until import until


class Store:
    """It is away for so many tries."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.heard: list[str] = []
        self.pauses: list[float] = []
        self.now = 0.0

    def say(self, claim: Claim, outcome: Outcome) -> None:
        if self.away:
            self.away -= 1
            raise BackendUnavailable("no store")
        self.heard.append(f"{claim.task} {outcome}")

    def wait(self, closed: threading.Event, pause: float) -> bool:
        self.pauses.append(pause)
        self.now += pause
        return closed.is_set()

    def later(self) -> Later:
        return Later(self.say, monotonic=lambda: self.now, wait=self.wait)


def claim(task: str) -> Claim:
    return Claim("key", task, "1", ttl=1)


def test_it_is_said_until_it_is_heard_with_growing_pauses() -> None:
    store = Store(away=7)
    later = store.later()

    later.say(claim("a"), Outcome.DONE)
    later.say(claim("b"), Outcome.OVER)

    until("both are heard", lambda: len(store.heard) == 2)
    assert store.heard == ["a done", "b over"]
    assert store.pauses[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_after_a_while_it_is_given_up_and_the_thread_ends() -> None:
    store = Store(away=10**6)
    later = store.later()
    others = set(threading.enumerate())

    later.say(claim("a"), Outcome.DONE)

    until("it ends", lambda: not later._unsaid)
    assert ENOUGH <= sum(store.pauses) <= ENOUGH + 30
    store.away = 0
    later.say(claim("b"), Outcome.DONE)
    until("the next is heard", lambda: store.heard == ["b done"])
    until("no thread is left", lambda: "celery-dlock-later" not in _threads_but(others))


def test_when_it_is_closed_all_is_tried_once_more_and_the_thread_ends() -> None:
    store = Store(away=1)
    later = Later(store.say)
    others = set(threading.enumerate())
    for task in "abc":
        later.say(claim(task), Outcome.DONE)
    until("it was tried in vain", lambda: not store.away)

    later.close()

    assert store.heard == ["a done", "b done", "c done"]
    assert "celery-dlock-later" not in _threads_but(others)


def test_a_store_that_is_away_as_it_is_closed_is_asked_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(away=2)
    later = Later(store.say)
    for task in "ab":
        later.say(claim(task), Outcome.DONE)
    until("it was tried in vain", lambda: store.away == 1)

    later.close()
    later.say(claim("c"), Outcome.DONE)

    assert store.heard == []
    assert not store.away
    assert [record.getMessage() for record in caplog.records] == [
        f"the lock store never heard that {task} is done" for task in "abc"
    ]


def _threads_but(others: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread not in others]
