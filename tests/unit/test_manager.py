"""The manager over a real store in memory, with a fault planted at any of its calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from celery_dlock.backends.base import BackendOptions, Reply
from celery_dlock.backends.memory import MemoryBackend
from celery_dlock.core import manager as manager_module
from celery_dlock.core.lease import SECOND, Lease, Term, margin
from celery_dlock.core.manager import Keeping, LockManager, Refused
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    EnterVerdict,
    LeaveVerdict,
    Mode,
    Outcome,
    Reason,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing import ManualClock
from tests.services.monotonic import Monotonic

TTL = 9.0
KEYS = ("a", "b", "c")


class TimeLimit(BaseException):
    """As ``SoftTimeLimitExceeded``: raised by a signal, anywhere."""


class Faulty(MemoryBackend):
    """The store in memory; ``fault(operation, key)`` runs before each call, ``late`` after it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(BackendOptions(clock=self.clock))
        self.calls: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], None] = lambda operation, key: None
        self.late: Callable[[str, str], None] = lambda operation, key: None

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        self.calls.append(("enter", claim.key))
        self.fault("enter", claim.key)
        reply = super().enter(claim, message)
        self.late("enter", claim.key)
        return reply

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        self.calls.append(("leave", claim.key))
        self.fault("leave", claim.key)
        reply = super().leave(claim, outcome, message)
        self.late("leave", claim.key)
        return reply

    def held(self) -> set[str]:
        return {key for key in KEYS if self.peek(key).holders}


@pytest.fixture
def store() -> Faulty:
    return Faulty()


@pytest.fixture
def manager(store: Faulty) -> LockManager:
    return LockManager(store)


def nobody_is_told(term: Term, reason: str) -> None:
    raise AssertionError(f"{term.key} was lost: {reason}")


KEEPING = Keeping(None, nobody_is_told)


def claims(task: str = "t", keys: Sequence[str] = KEYS, **options: object) -> list[Claim]:
    return [
        Claim(key, f"{task}:0:0", f"nonce-{task}", int(TTL * SECOND), **options)  # type: ignore[arg-type]
        for key in keys
    ]


def taken(answer: Lease | Refused) -> Lease:
    assert isinstance(answer, Lease), answer
    return answer


def watched(manager: LockManager) -> set[str]:
    return {claim.key for claim in manager._keeper._watches}


def nth(number: int, error: BaseException) -> Callable[[str, str], None]:
    """A fault that raises *error* at the *number*-th call, once."""
    count = 0

    def fault(operation: str, key: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise error

    return fault


def fails_for(*operations: tuple[str, str]) -> Callable[[str, str], None]:
    def fault(operation: str, key: str) -> None:
        if (operation, key) in operations:
            raise BackendUnavailable(f"no answer to {operation} {key}")

    return fault


def test_several_keys_are_taken_in_sorted_order(manager: LockManager, store: Faulty) -> None:
    lease = taken(manager.acquire(claims(keys=("c", "a", "b")), KEEPING))
    assert store.calls == [("enter", "a"), ("enter", "b"), ("enter", "c")]
    assert lease.keys == KEYS
    assert watched(manager) == set(KEYS)


@pytest.mark.parametrize("busy", KEYS)
def test_when_one_key_is_taken_none_is_held(manager: LockManager, store: Faulty, busy: str) -> None:
    taken(manager.acquire(claims("holder", [busy]), KEEPING))
    answer = manager.acquire(claims(), KEEPING)
    assert isinstance(answer, Refused)
    assert answer.claim.key == busy
    assert isinstance(answer.verdict, Busy)
    assert store.held() == {busy}
    assert watched(manager) == {busy}


def test_a_duplicate_of_a_finished_task_holds_nothing(manager: LockManager, store: Faulty) -> None:
    lease = taken(manager.acquire(claims(keys="b", done_ttl=60 * SECOND), KEEPING))
    manager.release(lease, Outcome.DONE)
    answer = manager.acquire(claims(), KEEPING)
    assert answer == Refused(claims(keys="b")[0], Drop(Reason.DONE))
    assert store.held() == set()


def test_released_keys_are_free_and_no_longer_renewed(manager: LockManager, store: Faulty) -> None:
    lease = taken(manager.acquire(claims(), KEEPING))
    manager.release(lease, Outcome.DONE)
    assert store.held() == set()
    assert watched(manager) == set()
    assert not lease.lost


def test_a_request_without_an_answer_is_taken_back(manager: LockManager, store: Faulty) -> None:
    # Given a store that does what it is asked, and whose answer to the second key is lost
    store.late = fails_for(("enter", "b"))
    # When three keys are asked for
    with pytest.raises(BackendUnavailable):
        manager.acquire(claims(), KEEPING)
    # Then what landed is given back
    assert ("enter", "b") in store.calls
    assert store.held() == set()
    assert watched(manager) == set()


def test_the_error_is_that_of_the_request_even_when_taking_back_fails_too(
    manager: LockManager, store: Faulty
) -> None:
    store.late = fails_for(("enter", "b"))
    store.fault = fails_for(("leave", "a"), ("leave", "b"))
    with pytest.raises(BackendUnavailable, match="no answer to enter b"):
        manager.acquire(claims(), KEEPING)
    # What cannot be reached lapses with its lease, for nobody renews it
    assert store.held() == {"a", "b"}
    assert watched(manager) == set()
    store.late = fails_for()
    store.clock.advance(TTL)
    assert taken(manager.acquire(claims("next"), KEEPING)).keys == KEYS


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, len(KEYS) + 1))
def test_a_time_limit_at_any_call_of_acquiring_leaves_nothing_held(
    manager: LockManager, store: Faulty, number: int, late: bool
) -> None:
    strikes = nth(number, TimeLimit())
    if late:
        store.late = strikes
    else:
        store.fault = strikes
    with pytest.raises(TimeLimit):
        manager.acquire(claims(), KEEPING)
    assert len(store.calls) == number + len(KEYS)
    assert store.held() == set()
    assert watched(manager) == set()


@pytest.mark.parametrize("number", range(1, len(KEYS) + 3))
def test_a_time_limit_while_being_refused_leaves_nothing_held(
    manager: LockManager, store: Faulty, number: int
) -> None:
    # Given the last key held by another: three calls ask, two give back
    taken(LockManager(store).acquire(claims("holder", ["c"]), KEEPING))
    store.late = nth(number, TimeLimit())
    with pytest.raises(TimeLimit):
        manager.acquire(claims(), KEEPING)
    assert store.held() == {"c"}


@pytest.mark.parametrize("number", range(1, len(KEYS) + 1))
def test_a_time_limit_while_the_keeper_takes_over_leaves_nothing_held(
    manager: LockManager, store: Faulty, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    strikes = nth(number, TimeLimit())
    watch = manager._keeper.watch

    def interrupted(*arguments: object) -> None:
        watch(*arguments)  # type: ignore[arg-type]
        strikes("watch", "")

    monkeypatch.setattr(manager._keeper, "watch", interrupted)
    with pytest.raises(TimeLimit):
        manager.acquire(claims(), KEEPING)
    assert store.held() == set()
    assert watched(manager) == set()


def test_a_time_limit_while_the_lease_is_made_leaves_nothing_held(
    manager: LockManager, store: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise TimeLimit

    monkeypatch.setattr(manager_module, "Lease", interrupted)
    with pytest.raises(TimeLimit):
        manager.acquire(claims(), KEEPING)
    assert store.held() == set()
    assert watched(manager) == set()


@pytest.mark.parametrize("number", range(1, 2 * len(KEYS) + 1))
def test_a_time_limit_while_releasing_can_be_made_good_by_releasing_again(
    manager: LockManager, store: Faulty, number: int
) -> None:
    lease = taken(manager.acquire(claims(), KEEPING))
    strikes = nth(number, TimeLimit())
    store.fault = store.late = strikes
    with pytest.raises(TimeLimit):
        manager.release(lease, Outcome.DONE)
    assert watched(manager) == set()
    manager.release(lease, Outcome.DONE)
    assert store.held() == set()


@pytest.mark.parametrize("failing", KEYS)
def test_a_key_that_cannot_be_freed_does_not_keep_the_others(
    manager: LockManager, store: Faulty, failing: str
) -> None:
    lease = taken(manager.acquire(claims(), KEEPING))
    store.fault = fails_for(("leave", failing))
    with pytest.raises(BackendUnavailable):
        manager.release(lease, Outcome.DONE)
    assert store.held() == {failing}
    assert watched(manager) == set()


def test_a_key_that_was_lost_is_noticed_when_it_is_given_back(
    manager: LockManager, store: Faulty
) -> None:
    lease = taken(manager.acquire(claims(), KEEPING))
    gone = claims()[1]
    MemoryBackend.leave(store, gone, Outcome.OVER)
    manager.release(lease, Outcome.DONE)
    assert [term.key for term in lease.terms if term.lost] == ["b"]


def test_a_late_release_frees_nothing_of_a_successor(manager: LockManager, store: Faulty) -> None:
    # Given a holder whose lease has ended, and a successor
    late = taken(manager.acquire(claims("late"), Keeping(None, lambda term, reason: None)))
    store.clock.advance(TTL)
    successor = taken(LockManager(store).acquire(claims("next"), KEEPING))
    assert successor.owner != late.owner
    # When the late one leaves
    manager.release(late, Outcome.DONE)
    # Then the successor still holds everything
    assert [h.task for key in KEYS for h in store.peek(key).holders] == ["next:0:0"] * 3


def test_somebody_carries_the_task_only_if_it_is_so_for_every_key(
    manager: LockManager, store: Faulty
) -> None:
    one = taken(manager.acquire(claims(keys="ab", done_ttl=60 * SECOND), KEEPING))
    MemoryBackend.leave(store, one.terms[0].claim, Outcome.DONE)
    assert manager.release(one, Outcome.REPEAT) is False
    two = taken(manager.acquire(claims("u", "ab", done_ttl=60 * SECOND), KEEPING))
    for term in two.terms:
        MemoryBackend.leave(store, term.claim, Outcome.DONE)
    assert manager.release(two, Outcome.REPEAT) is True


def test_trust_counts_from_before_each_request_was_sent(store: Faulty) -> None:
    # Given a store that takes half a second to answer, too short for a renewal to be due
    clock = Monotonic()
    store.late = lambda operation, key: clock.advance(0.5)
    manager = LockManager(store, monotonic=clock)
    start = clock()
    # When three keys are taken
    lease = taken(manager.acquire(claims(), KEEPING))
    # Then each is trusted from its own request
    ends = [term.trusted_until - start for term in lease.terms]
    assert ends == pytest.approx([n / 2 + TTL - margin(TTL) for n in range(3)])
    assert lease.remaining() == pytest.approx(TTL - margin(TTL) - 1.5)


@pytest.mark.parametrize("epoch", [0, 1, 1023])
def test_the_epoch_stands_in_front_of_the_token_and_both_fit(store: Faulty, epoch: int) -> None:
    # Given a store whose next token is the largest that one may issue
    store._token = 2**53 - 2
    lease = taken(LockManager(store, epoch).acquire(claims(keys="a"), KEEPING))
    assert lease.fencing_token == epoch * 2**53 + 2**53 - 1
    assert lease.fencing_token < 2**63


def test_a_higher_epoch_is_larger_than_every_token_of_the_one_before(store: Faulty) -> None:
    store._token = 2**53 - 2
    before = taken(LockManager(store, 3).acquire(claims(keys="a"), KEEPING)).fencing_token
    after = taken(LockManager(Faulty(), 4).acquire(claims(keys="a"), KEEPING)).fencing_token
    assert after > before


def test_a_read_lock_has_no_token_in_any_epoch(store: Faulty) -> None:
    lease = taken(LockManager(store, 7).acquire(claims(keys="a", mode=Mode.SHARED), KEEPING))
    assert lease.terms[0].token == 0
    assert lease.fencing_tokens == {}


def in_a_forked_child(what: Callable[[], object]) -> None:
    """Run *what* in a child process; fails if it raises there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            what()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("how", ["release", "take back"])
def test_a_process_forked_off_the_holder_frees_nothing(
    manager: LockManager, store: Faulty, how: str
) -> None:
    lease = taken(manager.acquire(claims(), KEEPING))

    def child() -> None:
        if how == "release":
            assert manager.release(lease, Outcome.DONE) is True
        else:
            manager.take_back(claims())
        assert store.held() == set(KEYS)
        assert watched(manager) == set(KEYS)
        assert [operation for operation, _ in store.calls] == ["enter"] * 3

    in_a_forked_child(child)


def test_a_claim_taken_back_while_the_store_is_away_is_not_renewed_when_it_is_back(
    manager: LockManager, store: Faulty
) -> None:
    # Given a claim that the caller never got to use
    taken(manager.acquire(claims(keys="a"), KEEPING))
    # When it is taken back in vain
    store.fault = fails_for(("leave", "a"))
    manager.take_back(claims(keys="a"))
    # Then it is the store's to end
    assert store.held() == {"a"}
    assert watched(manager) == set()
