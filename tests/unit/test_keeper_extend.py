"""A lease that is extended is trusted for longer, and left alone until that is nearly over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from celery_dlock.core.lease import SECOND, Lease, Term, margin
from celery_dlock.core.state import (
    Claim,
    NotHeld,
    Outcome,
    Renewed,
    RenewVerdict,
    Replaced,
    Unknown,
)
from celery_dlock.errors import BackendUnavailable, ConfigurationError, LockLost
from celery_dlock.locks.keeper import BOUND, NOT_THERE
from celery_dlock.locks.manager import Keeping, LockManager
from celery_dlock.stores.base import Trait
from celery_dlock.stores.memory import MemoryBackend
from tests.services.faulty import TTL, Faulty, claims, nobody_is_woken, taken
from tests.services.forked import in_a_forked_child
from tests.services.monotonic import Monotonic
from tests.unit.test_keeper import Idle


class Stage:
    """A manager over a store in memory, whose clock and whose keeper the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_dlock.locks.manager.Keeper", Idle)
        self.clock = Monotonic()
        self.store = Faulty()
        self.asked: list[list[float]] = []
        self.answer: Callable[[list[RenewVerdict]], list[RenewVerdict]] = lambda verdicts: verdicts
        self.takes = 0.0
        monkeypatch.setattr(self.store, "renew", self.renew)
        self.manager = LockManager(self.store, nobody_is_woken, monotonic=self.clock)
        self.lost: list[str] = []
        self.told = threading.Event()

    def renew(self, asked: Sequence[Claim]) -> list[RenewVerdict]:
        self.asked.append([claim.ttl / SECOND for claim in asked])
        verdicts = MemoryBackend.renew(self.store, asked)
        self.pass_time(self.takes)
        return self.answer(verdicts)

    def take(self, keys: str = "a", max_hold: float | None = None) -> Lease:
        return taken(self.manager.acquire(claims(keys=keys), Keeping(max_hold, self.on_lost)))

    def on_lost(self, term: Term, reason: str) -> None:
        self.lost.append(reason)
        self.told.set()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store.clock.advance(seconds)

    def tend(self) -> None:
        self.manager._keeper.tend()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_it_can_be_trusted_for_so_long_without_a_renewal(stage: Stage) -> None:
    lease = stage.take()
    stage.pass_time(2)

    lease.extend(120)

    assert lease.remaining() == pytest.approx(120)
    stage.pass_time(119.9)
    lease.check()
    assert stage.store.held() == {"a"}
    stage.pass_time(0.2)
    assert lease.lost


def test_so_long_is_counted_from_the_sending(stage: Stage) -> None:
    lease = stage.take()
    stage.takes = 5.0
    lease.extend(120)
    assert lease.remaining() == pytest.approx(115)


def test_it_is_renewed_again_when_that_is_nearly_over(stage: Stage) -> None:
    lease = stage.take()
    lease.extend(120)
    while stage.clock() < 1000 + 120 - TTL:
        stage.tend()
        stage.pass_time(1)
    assert len(stage.asked) == 1, "no usual renewal may take the place of the longer one"
    for _ in range(60):
        stage.tend()
        stage.pass_time(1)
    assert not lease.lost
    assert lease.ttl == TTL
    assert {tuple(asked) for asked in stage.asked[1:]} == {(TTL,)}
    assert lease.remaining() <= TTL


def test_less_than_it_has_takes_nothing_away_and_renews_it(stage: Stage) -> None:
    lease = stage.take()
    stage.pass_time(3)
    lease.extend(1)
    assert lease.remaining() == pytest.approx(TTL - margin(TTL))


def test_all_its_keys_are_extended_in_one_round_trip(stage: Stage) -> None:
    lease = stage.take("abc")
    lease.extend(120)
    assert len(stage.asked) == 1
    stage.pass_time(119.9)
    assert stage.store.held() == {"a", "b", "c"}
    assert not lease.lost


def test_one_that_the_store_has_given_up_is_lost_and_the_holder_is_told(stage: Stage) -> None:
    lease = stage.take("ab")
    stage.answer = lambda verdicts: [verdicts[0], NotHeld()]

    with pytest.raises(LockLost) as caught:
        lease.extend(120)

    assert caught.value.key == "b"
    assert lease.lost
    assert stage.told.wait(10)
    assert stage.lost == [NOT_THERE]


def test_one_that_is_asked_to_give_way_is_not_extended(stage: Stage) -> None:
    lease = stage.take()
    stage.answer = lambda _: [Replaced("newer:0:0")]

    with pytest.raises(LockLost, match="replaced by newer"):
        lease.extend(120)

    assert (lease.lost, lease.replaced) == (True, "newer")
    assert stage.told.wait(10)
    assert stage.lost == ["replaced by newer"]


def test_one_that_was_lost_is_not_asked_for(stage: Stage) -> None:
    lease = stage.take()
    stage.pass_time(TTL)
    with pytest.raises(LockLost, match="not renewed in time"):
        lease.extend(120)
    assert stage.asked == []


def test_one_that_was_given_back_stays_so(stage: Stage) -> None:
    lease = stage.take()
    stage.manager.release(lease, Outcome.DONE)
    with pytest.raises(LockLost, match="released"):
        lease.extend(120)
    assert stage.asked == []


def raises(_: list[RenewVerdict]) -> list[RenewVerdict]:
    raise BackendUnavailable("no answer")


@pytest.mark.parametrize("answer", [raises, lambda verdicts: [Unknown()]])
def test_a_store_that_does_not_answer_leaves_it_as_it_was(
    stage: Stage, answer: Callable[[list[RenewVerdict]], list[RenewVerdict]]
) -> None:
    lease = stage.take()
    stage.answer = answer

    with pytest.raises(BackendUnavailable):
        lease.extend(120)

    assert lease.remaining() == pytest.approx(TTL - margin(TTL))
    # It is renewed as usual
    stage.answer = lambda verdicts: verdicts
    stage.pass_time(TTL / 3)
    stage.tend()
    assert stage.asked[-1] == [TTL]


def test_beyond_max_hold_it_is_refused_and_up_to_it_it_is_not(stage: Stage) -> None:
    lease = stage.take(max_hold=100)
    stage.pass_time(5)
    with pytest.raises(ConfigurationError, match=r"max_hold: 95\.0 s are left"):
        lease.extend(95.1)
    assert stage.asked == []
    lease.extend(94.9)
    assert lease.remaining() == pytest.approx(94.9)
    stage.pass_time(95)
    stage.tend()
    assert stage.told.wait(10)
    assert stage.lost == [f"it was held for longer than 100 s ({BOUND})"]


def test_a_store_without_the_trait_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = stage.take()
    monkeypatch.setattr(Faulty, "traits", frozenset({Trait.MULTI_PROCESS}))
    with pytest.raises(ConfigurationError, match="trait lease-per-task, which Faulty lacks"):
        lease.extend(120)


def test_a_process_that_was_forked_off_extends_nothing(stage: Stage) -> None:
    lease = stage.take()

    def child() -> None:
        with pytest.raises(LockLost):
            lease.extend(120)

    in_a_forked_child(child)


def test_a_usual_renewal_that_is_under_way_does_not_overtake_it(stage: Stage) -> None:
    lease = stage.take()
    stage.pass_time(TTL / 3)
    asks, goes_on = threading.Event(), threading.Event()

    def hold(verdicts: list[RenewVerdict]) -> list[RenewVerdict]:
        asks.set()
        assert goes_on.wait(10)
        return verdicts

    stage.answer = hold
    usual = threading.Thread(target=stage.tend)
    usual.start()
    assert asks.wait(10)
    longer = threading.Thread(target=lease.extend, args=(120,))
    longer.start()
    assert stage.asked == [[TTL]], "it waits for the one before"
    goes_on.set()
    usual.join()
    longer.join()
    assert len(stage.asked) == 2
    assert lease.remaining() == pytest.approx(120)
    assert all(isinstance(v, Renewed) for v in MemoryBackend.renew(stage.store, claims(keys="a")))
