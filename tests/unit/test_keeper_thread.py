"""The keeper's thread itself, on the real clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from celery_dlock.core.keeper import Keeper
from celery_dlock.core.lease import SECOND, Term
from celery_dlock.core.state import Claim, Lost, Renewed, RenewVerdict
from tests.services.until import until


class Losses:
    """What the holders were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, term: Term, reason: str) -> None:
        self.told.append((term.key, reason))

    def wait(self) -> list[tuple[str, str]]:
        return until("a loss is told", lambda: self.told)


@pytest.fixture
def losses() -> Losses:
    return Losses()


def real_term(key: str, ttl: float) -> Term:
    claim = Claim(key, f"task-{key}:0:0", "n", int(ttl * SECOND))
    return Term(claim, 0, 1, time.monotonic())


def asleep(keeper: Keeper) -> None:
    """Wait until the thread waits for the first lease to be due."""
    waiters = vars(keeper._changed)["_waiters"]
    until("the keeper sleeps", lambda: waiters and keeper._wakes_at < float("inf"))


def test_the_thread_starts_with_the_first_lease_and_not_before(losses: Losses) -> None:
    keeper = Keeper(lambda claims: [Renewed(0) for _ in claims])
    before = set(threading.enumerate())
    assert vars(keeper)["_thread"] is None
    keeper.watch(real_term("a", 600.0), None, losses)
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    keeper.forget([real_term("a", 600.0).claim])


def test_a_short_task_that_comes_and_goes_wakes_nobody(
    losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a keeper that sleeps until the first lease is due
    asked: list[Sequence[Claim]] = []

    def renew(claims: Sequence[Claim]) -> list[RenewVerdict]:
        asked.append(claims)
        return [Renewed(0) for _ in claims]

    keeper = Keeper(renew)
    keeper.watch(real_term("first", 600.0), None, losses)
    asleep(keeper)
    woken: list[int] = []
    monkeypatch.setattr(keeper._changed, "notify", lambda n=1: woken.append(n))
    # When a hundred leases come and go
    for number in range(100):
        held = real_term(f"short-{number}", 600.0)
        keeper.watch(held, None, losses)
        keeper.forget([held.claim])
    # Then it has slept through all of it
    assert woken == []
    assert asked == []


def test_a_lease_due_earlier_than_the_others_wakes_the_thread(losses: Losses) -> None:
    asked: list[list[str]] = []

    def renew(claims: Sequence[Claim]) -> list[RenewVerdict]:
        asked.append([claim.key for claim in claims])
        return [Renewed(0) for _ in claims]

    keeper = Keeper(renew)
    keeper.watch(real_term("long", 600.0), None, losses)
    asleep(keeper)
    short = real_term("short", 0.3)
    keeper.watch(short, None, losses)
    until("three renewals", lambda: len(asked) >= 3)
    keeper.forget([short.claim])
    assert {"short"} == {key for keys in asked for key in keys}
    assert short.lost is None


@pytest.mark.parametrize("defect", ["raises", "too few verdicts"])
def test_a_defect_in_renewing_does_not_end_the_thread(defect: str, losses: Losses) -> None:
    calls = 0

    def renew(claims: Sequence[Claim]) -> list[RenewVerdict]:
        nonlocal calls
        calls += 1
        if calls == 1 and defect == "raises":
            raise KeyError("a bug")
        return [] if calls == 1 else [Renewed(0) for _ in claims]

    keeper = Keeper(renew)
    held = real_term("a", 1.5)
    keeper.watch(held, None, losses)
    until("it goes on renewing", lambda: calls >= 3)
    keeper.forget([held.claim])
    assert held.lost is None
    assert losses.told == []


def test_a_holder_that_cannot_be_told_does_not_end_the_thread(
    losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a process that can start no further thread once the keeper runs
    keeper = Keeper(lambda claims: [Lost() if c.key == "gone" else Renewed(0) for c in claims])
    gone, kept = real_term("gone", 0.3), real_term("kept", 0.6)
    keeper.watch(gone, None, losses)
    keeper.watch(kept, None, losses)
    start = threading.Thread.start

    def no_more(thread: threading.Thread) -> None:
        if thread.name == "celery-dlock-lost":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_more)
    # When one lease is lost
    until("the loss is noticed", lambda: gone.lost)
    # Then the others are still renewed
    first = kept.trusted_until
    until("the other is renewed", lambda: kept.trusted_until > first + 0.5)
    keeper.forget([kept.claim])
    assert kept.lost is None


def test_a_keeper_whose_thread_could_not_start_tries_again_with_the_next_lease(
    losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(lambda claims: [Renewed(0) for _ in claims])

    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError):
            keeper.watch(real_term("a", 0.3), None, losses)
    keeper.forget([real_term("a", 0.3).claim])
    held = real_term("b", 0.3)
    keeper.watch(held, None, losses)
    first = held.trusted_until
    until("it is renewed", lambda: held.trusted_until > first)
    keeper.forget([held.claim])
