"""The keeper's thread itself, on the real clock."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from celery_dlock.core.lease import SECOND, Term, unsleeping
from celery_dlock.core.state import Claim, NotHeld, Renewed, RenewVerdict
from celery_dlock.locks.keeper import Keeper
from tests.services.until import until


class Losses:
    """What the holders were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, term: Term, reason: str) -> None:
        self.told.append((term.key, reason))


@pytest.fixture
def losses() -> Losses:
    return Losses()


TTL = 600.0


def new_term(key: str, age: float = 0.0) -> Term:
    claim = Claim(key, f"task-{key}:0:0", "n", int(TTL * SECOND))
    return Term(claim, 0, 1, unsleeping() - age)


def term_due_soon(key: str) -> Term:
    """To be renewed in a moment, and trusted for minutes: a slow machine does not lose it."""
    return new_term(key, age=TTL / 3 - 0.1)


def renewed(claims: Sequence[Claim]) -> list[RenewVerdict]:
    return [Renewed(0) for _ in claims]


def asleep(keeper: Keeper) -> None:
    """Wait until the thread waits for the first lease to be due."""
    waiters = vars(keeper._changed)["_waiters"]
    until("the keeper sleeps", lambda: waiters and keeper._wakes_at < float("inf"))


def test_the_thread_starts_with_the_first_lease_and_not_before(losses: Losses) -> None:
    keeper = Keeper(renewed)
    before = set(threading.enumerate())
    assert vars(keeper)["_thread"] is None
    keeper.watch(new_term("a"), None, losses)
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    keeper.forget([new_term("a").claim])


def test_the_thread_of_one_that_is_closed_ends_when_nothing_is_held(losses: Losses) -> None:
    keeper = Keeper(renewed)
    before = set(threading.enumerate())
    held = term_due_soon("a")
    trusted_until = held.trusted_until
    keeper.watch(held, None, losses)
    (thread,) = set(threading.enumerate()) - before

    keeper.close()

    until("it renews", lambda: held.trusted_until > trusted_until)
    keeper.forget([held.claim])
    keeper.close()  # or it would sleep until the next one is due
    until("the thread has ended", lambda: not thread.is_alive())


def test_a_short_task_wakes_nobody(losses: Losses, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Claim]] = []

    def renew(claims: Sequence[Claim]) -> list[RenewVerdict]:
        asked.append(claims)
        return [Renewed(0) for _ in claims]

    keeper = Keeper(renew)
    keeper.watch(new_term("first"), None, losses)
    asleep(keeper)
    woken: list[int] = []
    monkeypatch.setattr(keeper._changed, "notify", lambda n=1: woken.append(n))
    for number in range(100):
        held = new_term(f"short-{number}")
        keeper.watch(held, None, losses)
        keeper.forget([held.claim])
    assert woken == []
    assert asked == []


def test_a_lease_due_earlier_than_the_others_wakes_the_thread(losses: Losses) -> None:
    asked: list[list[str]] = []

    def renew(claims: Sequence[Claim]) -> list[RenewVerdict]:
        asked.append([claim.key for claim in claims])
        return [Renewed(0) for _ in claims]

    keeper = Keeper(renew)
    keeper.watch(new_term("later"), None, losses)
    asleep(keeper)
    earlier = term_due_soon("earlier")
    keeper.watch(earlier, None, losses)
    until("it is renewed", lambda: asked)
    keeper.forget([earlier.claim])
    assert asked == [["earlier"]]
    assert earlier.lost is None


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
    held = term_due_soon("a")
    trusted_until = held.trusted_until
    keeper.watch(held, None, losses)
    until("it goes on renewing", lambda: held.trusted_until > trusted_until)
    keeper.forget([held.claim])
    assert held.lost is None
    assert losses.told == []


def test_a_holder_that_cannot_be_told_does_not_end_the_thread(
    losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(lambda claims: [NotHeld() if c.key == "gone" else Renewed(0) for c in claims])
    gone, kept = term_due_soon("gone"), new_term("kept", age=TTL / 3 - 0.3)
    start = threading.Thread.start

    def no_more(thread: threading.Thread) -> None:
        if thread.name == "celery-dlock-lost":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_more)
    first = kept.trusted_until
    for term in (gone, kept):
        keeper.watch(term, None, losses)
    until("the loss is noticed", lambda: gone.lost)
    until("the other is renewed", lambda: kept.trusted_until > first)
    keeper.forget([kept.claim])
    assert kept.lost is None


def test_a_keeper_whose_thread_could_not_start_tries_again_with_the_next_lease(
    losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(renewed)

    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError):
            keeper.watch(new_term("a"), None, losses)
    keeper.forget([new_term("a").claim])
    held = term_due_soon("b")
    first = held.trusted_until
    keeper.watch(held, None, losses)
    until("it is renewed", lambda: held.trusted_until > first)
    keeper.forget([held.claim])
