"""The keeper, moved by hand: the clock is the test's, and so is every turn of its loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from celery_dlock.core.lease import NOT_RENEWED, SECOND, Term, margin
from celery_dlock.core.state import Claim, NotHeld, Renewed, RenewVerdict, Replaced, Unknown
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.keeper import BOUND, NOT_THERE, Keeper
from tests.services.monotonic import Monotonic
from tests.services.until import until

TTL = 9.0
AWAY = BackendUnavailable("away")
NOT_IN_TIME = ("a", NOT_RENEWED)


class Store:
    """The renewing half of a store: what it was asked, and what it is to answer."""

    def __init__(self, clock: Monotonic) -> None:
        self.clock = clock
        self.asked: list[list[str]] = []
        self.verdicts: dict[str, RenewVerdict] = {}
        self.error: Exception | None = None
        self.takes = 0.0
        self.before_answer: Callable[[], None] = lambda: None

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        self.asked.append(sorted(claim.key for claim in claims))
        self.clock.advance(self.takes)
        self.before_answer()
        if self.error is not None:
            raise self.error
        return [self.verdicts.get(claim.key, Renewed(0)) for claim in claims]


class Idle(Keeper):
    """A keeper whose thread does nothing, so that the test turns the loop."""

    def _run(self) -> None:
        threading.Event().wait()


class Stage:
    """A keeper over a store, and what its holders are told of losses and of doubts."""

    def __init__(self) -> None:
        self.clock = Monotonic()
        self.store = Store(self.clock)
        self.keeper = Idle(self.store.renew, self.clock)
        self._losses: list[tuple[str, str]] = []
        self._doubts: list[tuple[str, bool]] = []

    def watch(self, key: str = "a", max_hold: float | None = None) -> Term:
        claim = Claim(key, f"task-{key}:0:0", "n", int(TTL * SECOND))
        held = Term(claim, 0, 1, self.clock(), self.clock)
        self.keeper.watch(
            held,
            max_hold,
            lambda term, reason: self._losses.append((term.key, reason)),
            lambda term, uncertain: self._doubts.append((term.key, uncertain)),
        )
        return held

    def tend(self, after: float = 0.0) -> None:
        self.clock.advance(after)
        self.keeper.tend()

    def turn(self, until: float = float("inf")) -> bool:
        """Sleep until the first lease is due, as the thread does, and tend; or until *until*."""
        due = min((w.due for w in self.keeper._watches.values()), default=float("inf"))
        if due >= until:
            self.clock.now = until
            return False
        self.clock.now = max(self.clock.now, due)
        self.keeper.tend()
        return True

    def turn_until(self, instant: float) -> None:
        while self.turn(instant):
            pass

    def loss(self) -> list[tuple[str, str]]:
        return until("a loss is told", lambda: self._losses)

    def losses(self) -> list[tuple[str, str]]:
        """All that was told of losses, in the end."""
        _join("celery-dlock-lost")
        return self._losses

    def doubts(self) -> list[tuple[str, bool]]:
        _join("celery-dlock-doubt")
        return self._doubts


def _join(threads: str) -> None:
    """None of that name is left that could still tell something."""
    for thread in threading.enumerate():
        if thread.name == threads:
            thread.join()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_lease_is_renewed_every_third_of_its_ttl(stage: Stage) -> None:
    held = stage.watch()

    times = []
    for _ in range(10):
        stage.turn()
        times.append(stage.clock.now - held.since)

    assert times == pytest.approx([TTL / 3 * n for n in range(1, 11)])
    assert stage.store.asked == [["a"]] * 10
    assert not held.lost


def test_nothing_is_renewed_before_half_of_that_has_passed(stage: Stage) -> None:
    stage.watch()

    stage.tend(TTL / 6 - 0.01)
    assert stage.store.asked == []
    stage.tend(0.02)
    assert stage.store.asked == [["a"]]


def test_what_is_due_soon_goes_along_in_the_same_call(stage: Stage) -> None:
    for key in ("a", "b", "c"):
        stage.watch(key)
        stage.clock.advance(0.4)
    stage.clock.advance(TTL / 3 - 1.2)
    stage.watch("late")

    stage.tend()

    assert stage.store.asked == [["a", "b", "c"]]


def test_a_renewal_is_trusted_from_its_sending_however_late_the_answer(stage: Stage) -> None:
    held = stage.watch()
    stage.clock.advance(TTL / 3)
    sent_at = stage.clock()
    stage.store.takes = 4.0

    stage.tend()

    assert held.trusted_until == pytest.approx(sent_at + TTL - margin(TTL))


def test_a_failed_renewal_is_tried_again_well_before_the_lease_ends(stage: Stage) -> None:
    held = stage.watch()
    stage.store.error = AWAY
    stage.turn_until(held.since + TTL * 2 / 3)
    tries = len(stage.store.asked)
    stage.store.error = None

    stage.turn()

    assert tries in range(3, 7), "about once a second"
    assert not held.lost
    assert held.trusted_until > held.since + TTL
    assert stage.losses() == []


def test_a_lease_that_is_uncertain_is_told_once_and_that_it_is_certain_again(stage: Stage) -> None:
    held = stage.watch()
    stage.store.error = AWAY
    stage.turn()
    assert stage.doubts() == [], "the first failure is none yet"
    stage.turn_until(held.since + TTL * 0.9)
    assert len(stage.store.asked) > 4
    assert stage.doubts() == [("a", True)]

    stage.store.error = None
    for _ in range(3):
        stage.turn()

    assert stage.doubts() == [("a", True), ("a", False)]


def test_a_lease_that_is_lost_is_not_told_to_be_certain_again(stage: Stage) -> None:
    held = stage.watch()
    stage.store.error = AWAY

    stage.turn_until(held.trusted_until + 0.1)

    assert stage.loss() == [NOT_IN_TIME]
    assert stage.doubts() == [("a", True)]


def test_one_that_a_part_of_the_store_does_not_answer_for_is_uncertain_alone(stage: Stage) -> None:
    held, other = stage.watch("a"), stage.watch("b")
    stage.store.verdicts["a"] = Unknown()

    stage.turn()
    assert other.trusted_until > held.trusted_until
    stage.turn_until(held.since + TTL * 2 / 3)
    assert stage.store.asked[1] == ["a"]
    assert stage.doubts() == [("a", True)]

    stage.store.verdicts.clear()
    stage.keeper.extend([held], int(2 * TTL * SECOND))
    assert stage.doubts() == [("a", True), ("a", False)]
    assert held.trusted_until > other.trusted_until
    assert stage.losses() == []


def test_a_lease_without_a_renewal_is_lost_in_time(stage: Stage) -> None:
    held = stage.watch()
    stage.store.error = AWAY
    while stage.turn(held.trusted_until):
        assert held.lost is None
    assert stage.losses() == []

    assert held.lost == NOT_RENEWED, "by the clock alone"
    stage.tend()
    assert stage.loss() == [NOT_IN_TIME]

    # It is over, even when the store is back
    asked = len(stage.store.asked)
    stage.store.error = None
    stage.tend(TTL)
    assert len(stage.store.asked) == asked
    assert held.lost


def test_the_last_try_is_not_skipped_past_the_end_of_trust(stage: Stage) -> None:
    held = stage.watch()
    stage.store.error = AWAY
    stage.tend(held.trusted_until - stage.clock() - 0.3)

    stage.turn()

    assert stage.clock.now == held.trusted_until
    assert stage.loss() == [NOT_IN_TIME]


@pytest.mark.parametrize(
    ("verdict", "reason", "newer"),
    [(NotHeld(), NOT_THERE, None), (Replaced("newer:0:0"), "replaced by newer", "newer")],
)
def test_a_lease_that_the_store_has_given_to_another_is_lost_at_once_and_told_once(
    stage: Stage, verdict: RenewVerdict, reason: str, newer: str | None
) -> None:
    gone, kept = stage.watch("gone"), stage.watch("kept")
    stage.store.verdicts["gone"] = verdict

    stage.tend(TTL / 3)

    assert stage.loss() == [("gone", reason)]
    assert (gone.lost, gone.replaced) == (reason, newer)
    assert not kept.lost
    for _ in range(5):
        stage.tend(TTL / 3)
    assert stage.losses() == [("gone", reason)]
    assert stage.store.asked[1:] == [["kept"]] * 5


def test_a_lease_is_not_renewed_beyond_max_hold(stage: Stage) -> None:
    held = stage.watch(max_hold=20.0)
    while stage.turn(held.since + 20.0):
        assert held.lost is None
    asked = len(stage.store.asked)

    stage.turn()
    assert stage.clock.now == held.since + 20.0
    stage.tend(TTL)

    assert len(stage.store.asked) == asked
    assert stage.loss() == [("a", f"it was held for longer than 20 s ({BOUND})")]
    assert held.lost == f"it was held for longer than 20 s ({BOUND})"


def test_max_hold_shorter_than_a_third_of_the_ttl_ends_it_in_time(stage: Stage) -> None:
    stage.watch(max_hold=1.0)

    stage.tend(1.0)

    assert stage.loss() == [("a", f"it was held for longer than 1 s ({BOUND})")]
    assert stage.store.asked == []


def test_what_was_forgotten_is_neither_renewed_nor_lost(stage: Stage) -> None:
    held = stage.watch("a")
    stage.watch("b")
    stage.keeper.forget([held.claim])

    stage.tend(TTL / 3)

    assert stage.store.asked == [["b"]]


def test_a_lease_released_while_its_renewal_was_under_way_is_not_lost(stage: Stage) -> None:
    held = stage.watch()
    stage.store.verdicts["a"] = NotHeld()
    stage.store.before_answer = lambda: stage.keeper.forget([held.claim])

    stage.tend(TTL / 3)

    assert stage.losses() == []
    assert held.lost is None
