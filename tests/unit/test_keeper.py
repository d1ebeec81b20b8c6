"""The keeper, moved by hand: the clock is the test's, and so is every turn of its loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from celery_dlock.core.lease import SECOND, Term, margin
from celery_dlock.core.state import (
    Claim,
    NotHeld,
    Renewed,
    RenewVerdict,
    Replaced,
    Unknown,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.keeper import NOT_THERE, Keeper
from tests.services.monotonic import Monotonic
from tests.services.until import until

TTL = 9.0


class Store:
    """The renewing half of a store: what it was asked, and what it is to answer."""

    def __init__(self, clock: Monotonic) -> None:
        self.clock = clock
        self.asked: list[list[str]] = []
        self.given_up: set[str] = set()
        self.silent: set[str] = set()
        self.newer: dict[str, str] = {}
        self.error: Exception | None = None
        self.takes = 0.0
        self.before_answer: Callable[[], None] = lambda: None

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        self.asked.append(sorted(claim.key for claim in claims))
        self.clock.advance(self.takes)
        self.before_answer()
        if self.error is not None:
            raise self.error
        return [self.verdict(claim.key) for claim in claims]

    def verdict(self, key: str) -> RenewVerdict:
        if key in self.silent:
            return Unknown()
        if key in self.newer:
            return Replaced(self.newer[key])
        return NotHeld() if key in self.given_up else Renewed(0)


class Idle(Keeper):
    """A keeper whose thread does nothing, so that the test turns the loop."""

    def _run(self) -> None:
        self.released = threading.Event()
        self.released.wait()


class Losses:
    """What the holders were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, term: Term, reason: str) -> None:
        self.told.append((term.key, reason))

    def wait(self) -> list[tuple[str, str]]:
        return until("a loss is told", lambda: self.told)


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(clock: Monotonic) -> Store:
    return Store(clock)


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def keeper(store: Store, clock: Monotonic) -> Keeper:
    return Idle(store.renew, clock)


def term(clock: Monotonic, key: str = "a", ttl: float = TTL) -> Term:
    return Term(Claim(key, f"task-{key}:0:0", "n", int(ttl * SECOND)), 0, 1, clock(), clock)


def turn(keeper: Keeper, clock: Monotonic, until: float = float("inf")) -> bool:
    """Sleep until the first lease is due, as the thread does, and tend; or only until *until*."""
    due = min((w.due for w in keeper._watches.values()), default=float("inf"))
    if due >= until:
        clock.now = until
        return False
    clock.now = max(clock.now, due)
    keeper.tend()
    return True


class Doubts:
    """What the holders were told of leases that became uncertain, or certain again."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []

    def __call__(self, term: Term, uncertain: bool) -> None:
        self.told.append((term.key, uncertain))

    def in_the_end(self) -> list[tuple[str, bool]]:
        ended("celery-dlock-doubt")
        return self.told


def told_in_the_end(losses: Losses) -> list[tuple[str, str]]:
    """All that was told of losses."""
    ended("celery-dlock-lost")
    return losses.told


def ended(threads: str) -> None:
    """None of that name is left that could still tell something."""
    for thread in threading.enumerate():
        if thread.name == threads:
            thread.join()


def test_a_lease_is_renewed_every_third_of_its_ttl(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    times = []
    for _ in range(10):
        turn(keeper, clock)
        times.append(clock.now - held.since)
    assert times == pytest.approx([TTL / 3 * n for n in range(1, 11)])
    assert store.asked == [["a"]] * 10
    assert not held.lost


def test_nothing_is_renewed_before_half_of_that_has_passed(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    keeper.watch(term(clock), None, losses)
    clock.advance(TTL / 6 - 0.01)
    keeper.tend()
    assert store.asked == []
    clock.advance(0.02)
    keeper.tend()
    assert store.asked == [["a"]]


def test_what_is_due_soon_goes_along_in_the_same_call(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    # Given three leases taken within a second of each other, and one taken later
    for key in ("a", "b", "c"):
        keeper.watch(term(clock, key), None, losses)
        clock.advance(0.4)
    clock.advance(TTL / 3 - 1.2)
    keeper.watch(term(clock, "late"), None, losses)
    # When the first of them is due
    keeper.tend()
    # Then one call renews the three
    assert store.asked == [["a", "b", "c"]]


def test_a_renewal_is_trusted_from_its_sending_however_late_the_answer(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    clock.advance(TTL / 3)
    sent_at = clock()
    store.takes = 4.0
    keeper.tend()
    assert held.trusted_until == pytest.approx(sent_at + TTL - margin(TTL))


def test_a_failed_renewal_is_tried_again_well_before_the_lease_ends(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    store.error = BackendUnavailable("away")
    # When the store is away for two thirds of the lease, and back
    while turn(keeper, clock, held.since + TTL * 2 / 3):
        pass
    tries = len(store.asked)
    store.error = None
    turn(keeper, clock)
    # Then it was asked about once a second, and the lease was never lost
    assert tries in range(3, 7)
    assert not held.lost
    assert held.trusted_until > held.since + TTL
    assert told_in_the_end(losses) == []


def test_a_lease_that_is_uncertain_is_told_once_and_that_it_is_certain_again(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    doubts = Doubts()
    held = term(clock)
    keeper.watch(held, None, losses, doubts)
    store.error = BackendUnavailable("away")
    # When it cannot be renewed: the first failure is none yet
    turn(keeper, clock)
    assert doubts.in_the_end() == []
    while turn(keeper, clock, held.since + TTL * 0.9):
        pass
    assert len(store.asked) > 4
    assert doubts.in_the_end() == [("a", True)]
    # And then it can
    store.error = None
    for _ in range(3):
        turn(keeper, clock)
    assert doubts.in_the_end() == [("a", True), ("a", False)]


def test_a_lease_that_is_lost_is_no_longer_uncertain_and_that_is_not_told_too(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    doubts = Doubts()
    held = term(clock)
    keeper.watch(held, None, losses, doubts)
    store.error = BackendUnavailable("away")
    while turn(keeper, clock, held.trusted_until + 0.1):
        pass
    assert losses.wait() == [("a", "it was not renewed in time")]
    assert doubts.in_the_end() == [("a", True)]


def test_one_that_a_part_of_the_store_does_not_answer_for_is_uncertain_alone(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    doubts = Doubts()
    held, other = term(clock, "a"), term(clock, "b")
    for each in (held, other):
        keeper.watch(each, None, losses, doubts)
    store.silent = {"a"}
    while turn(keeper, clock, held.since + TTL * 2 / 3):
        pass
    assert doubts.in_the_end() == [("a", True)]
    store.silent.clear()
    keeper.extend([held], int(2 * TTL * SECOND))
    assert doubts.in_the_end() == [("a", True), ("a", False)]


def test_a_part_of_the_store_that_does_not_answer_is_asked_again_and_the_rest_is_renewed(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held, other = term(clock, "a"), term(clock, "b")
    for each in (held, other):
        keeper.watch(each, None, losses)
    store.silent = {"a"}
    turn(keeper, clock)
    assert other.trusted_until > held.trusted_until
    store.silent = set()
    turn(keeper, clock)
    assert store.asked[1] == ["a"]
    assert held.trusted_until > other.trusted_until
    assert not losses.told


def test_a_lease_that_cannot_be_renewed_is_lost_when_it_can_no_longer_be_trusted(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    store.error = BackendUnavailable("away")
    while turn(keeper, clock, held.trusted_until):
        assert held.lost is None
    assert told_in_the_end(losses) == []
    # Then it is lost by the clock alone, and the next turn tells
    assert held.lost == "it was not renewed in time"
    keeper.tend()
    assert losses.wait() == [("a", "it was not renewed in time")]
    # And then it is over, even when the store is back
    asked = len(store.asked)
    store.error = None
    clock.advance(TTL)
    keeper.tend()
    assert len(store.asked) == asked
    assert held.lost


def test_the_last_try_is_not_skipped_past_the_end_of_trust(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    store.error = BackendUnavailable("away")
    clock.advance(held.trusted_until - clock() - 0.3)
    keeper.tend()
    # When the next turn comes, it comes at the end of trust and not a retry later
    turn(keeper, clock)
    assert clock.now == held.trusted_until
    assert losses.wait() == [("a", "it was not renewed in time")]


def test_a_lease_that_the_store_has_given_up_is_lost_at_once(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    gone, kept = term(clock, "gone"), term(clock, "kept")
    for each in (gone, kept):
        keeper.watch(each, None, losses)
    store.given_up = {"gone"}
    clock.advance(TTL / 3)
    keeper.tend()
    assert losses.wait() == [("gone", NOT_THERE)]
    assert gone.lost
    assert not kept.lost


def test_one_that_a_newer_task_asks_for_is_lost_to_that(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    store.newer = {held.key: "newer:0:0"}
    clock.advance(TTL / 3)

    keeper.tend()

    assert losses.wait() == [(held.key, "replaced by newer")]
    assert (held.lost, held.replaced) == ("replaced by newer", "newer")
    clock.advance(TTL / 3)
    keeper.tend()
    assert len(store.asked) == 1


def test_it_is_not_renewed_beyond_max_hold(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, 20.0, losses)
    while turn(keeper, clock, held.since + 20.0):
        assert held.lost is None
    asked = len(store.asked)
    turn(keeper, clock)
    assert clock.now == held.since + 20.0
    clock.advance(TTL)
    keeper.tend()
    assert len(store.asked) == asked
    assert losses.wait() == [("a", "it was held for longer than 20 s")]
    assert held.lost == "it was held for longer than 20 s"


def test_max_hold_shorter_than_a_third_of_the_ttl_strikes_in_time(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    keeper.watch(term(clock), 1.0, losses)
    clock.advance(1.0)
    keeper.tend()
    assert losses.wait() == [("a", "it was held for longer than 1 s")]
    assert store.asked == []


def test_what_was_forgotten_is_neither_renewed_nor_lost(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held, other = term(clock, "a"), term(clock, "b")
    keeper.watch(held, None, losses)
    keeper.watch(other, None, losses)
    keeper.forget([held.claim])
    clock.advance(TTL / 3)
    keeper.tend()
    assert store.asked == [["b"]]


def test_a_lease_given_back_while_its_renewal_was_under_way_is_not_lost(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    clock.advance(TTL / 3)
    store.given_up = {"a"}
    store.before_answer = lambda: keeper.forget([held.claim])
    keeper.tend()
    assert told_in_the_end(losses) == []
    assert held.lost is None


def test_the_holder_is_told_once(
    keeper: Keeper, store: Store, clock: Monotonic, losses: Losses
) -> None:
    held = term(clock)
    keeper.watch(held, None, losses)
    store.given_up = {"a"}
    clock.advance(TTL / 3)
    for _ in range(5):
        keeper.tend()
        clock.advance(TTL)
    assert told_in_the_end(losses) == [("a", NOT_THERE)]
