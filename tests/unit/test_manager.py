"""The manager over a real store in memory: all keys or none, and the token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_dlock.core.lease import SECOND, margin
from celery_dlock.core.state import (
    Busy,
    Drop,
    Mode,
    Outcome,
    Reason,
    WaitMode,
)
from celery_dlock.locks.manager import Keeping, LockManager
from celery_dlock.locks.several import Refused
from celery_dlock.stores.memory import MemoryBackend
from tests.services.faulty import (
    KEEPING,
    KEYS,
    TTL,
    Faulty,
    claims,
    taken,
    watched,
)
from tests.services.forked import in_a_forked_child
from tests.services.monotonic import Monotonic


@pytest.fixture
def store() -> Iterator[Faulty]:
    store = Faulty()
    yield store
    store.abandon()


@pytest.fixture
def manager(store: Faulty) -> LockManager:
    return store.manager()


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
    successor = taken(store.manager().acquire(claims("next"), KEEPING))
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


def test_a_task_that_is_to_run_again_waits_in_one_queue_only(store: Faulty) -> None:
    woken: list[str] = []
    manager = store.manager(lambda wakes: woken.extend(wake.key for wake in wakes))
    lease = taken(manager.acquire(claims(wait=WaitMode.QUEUE), KEEPING, b"before"))
    # When it waits again, and is called at once from there
    carried = manager.release(lease, Outcome.REPEAT, b"again")
    # Then that is at the first of its keys, and enough: it need not be published as well
    assert [store.peek(key).parked + len(store.peek(key).grants) for key in KEYS] == [1, 0, 0]
    assert woken == ["a"]
    assert carried


def test_trust_counts_from_before_each_request_was_sent(store: Faulty) -> None:
    # Given a store that takes half a second to answer, too short for a renewal to be due
    clock = Monotonic()
    store.late = lambda operation, key: clock.advance(0.5)
    manager = store.manager(monotonic=clock)
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
    lease = taken(store.manager(epoch=epoch).acquire(claims(keys="a"), KEEPING))
    assert lease.fencing_token == epoch * 2**53 + 2**53 - 1
    assert lease.fencing_token < 2**63


def test_a_higher_epoch_is_larger_than_every_token_of_the_one_before(store: Faulty) -> None:
    store._token = 2**53 - 2
    before = taken(store.manager(epoch=3).acquire(claims(keys="a"), KEEPING)).fencing_token
    store._token = 0
    after = taken(store.manager(epoch=4).acquire(claims(keys="b"), KEEPING)).fencing_token
    assert after > before


def test_a_read_lock_has_no_token_in_any_epoch(store: Faulty) -> None:
    lease = taken(store.manager(epoch=7).acquire(claims(keys="a", mode=Mode.SHARED), KEEPING))
    assert lease.terms[0].token == 0
    assert lease.fencing_tokens == {}


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


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_off_the_holder_takes_nothing_by_its_manager(
    manager: LockManager, store: Faulty
) -> None:
    taken(manager.acquire(claims(keys="a"), KEEPING))

    def child() -> None:
        with pytest.raises(RuntimeError, match="of the parent process"):
            manager.acquire(claims(keys="b"), KEEPING)
        assert store.held() == {"a"}

    in_a_forked_child(child)
    taken(manager.acquire(claims(keys="b"), KEEPING))
