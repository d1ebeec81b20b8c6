"""The manager over a real store in memory: all keys or none, and the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from celery_dlock.core.lease import SECOND, margin
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    Mode,
    Outcome,
    Park,
    Reason,
    WaitMode,
)
from celery_dlock.locks.manager import Refused
from celery_dlock.stores.base import Wake
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


def test_several_keys_are_taken_in_sorted_order(store: Faulty) -> None:
    lease = taken(store.locks.acquire(claims(keys=("c", "a", "b")), KEEPING))
    assert store.calls == [("enter", "a"), ("enter", "b"), ("enter", "c")]
    assert lease.keys == KEYS
    assert watched(store.locks) == set(KEYS)


@pytest.mark.parametrize("busy", KEYS)
def test_when_one_key_is_taken_none_is_held(store: Faulty, busy: str) -> None:
    taken(store.locks.acquire(claims("holder", [busy]), KEEPING))
    answer = store.locks.acquire(claims(), KEEPING)
    assert isinstance(answer, Refused)
    assert answer.claim.key == busy
    assert isinstance(answer.verdict, Busy)
    assert store.held() == {busy}
    assert watched(store.locks) == {busy}


def test_a_duplicate_of_a_finished_task_holds_nothing(store: Faulty) -> None:
    lease = taken(store.locks.acquire(claims(keys="b", done_ttl=60 * SECOND), KEEPING))
    store.locks.release(lease, Outcome.DONE)
    answer = store.locks.acquire(claims(), KEEPING)
    assert answer == Refused(claims(keys="b")[0], Drop(Reason.DONE))
    assert store.held() == set()


def test_a_key_that_was_lost_is_noticed_when_it_is_given_back(store: Faulty) -> None:
    lease = taken(store.locks.acquire(claims(), KEEPING))
    gone = claims()[1]
    MemoryBackend.leave(store, gone, Outcome.OVER)
    store.locks.release(lease, Outcome.DONE)
    assert [term.key for term in lease.terms if term.lost] == ["b"]


def test_somebody_carries_the_task_only_if_it_is_so_for_every_key(store: Faulty) -> None:
    one = taken(store.locks.acquire(claims(keys="ab", done_ttl=60 * SECOND), KEEPING))
    MemoryBackend.leave(store, one.terms[0].claim, Outcome.DONE)
    assert store.locks.release(one, Outcome.REPEAT) is False
    two = taken(store.locks.acquire(claims("u", "ab", done_ttl=60 * SECOND), KEEPING))
    for term in two.terms:
        MemoryBackend.leave(store, term.claim, Outcome.DONE)
    assert store.locks.release(two, Outcome.REPEAT) is True


def test_a_task_that_is_to_run_again_waits_in_one_queue_only(store: Faulty) -> None:
    woken: list[str] = []
    manager = store.manager(lambda wakes: woken.extend(wake.key for wake in wakes))
    lease = taken(manager.acquire(claims(wait=WaitMode.QUEUE), KEEPING, b"before"))
    carried = manager.release(lease, Outcome.REPEAT, b"again")
    assert [store.peek(key).parked + len(store.peek(key).grants) for key in KEYS] == [1, 0, 0]
    assert woken == ["a"]
    assert carried


def test_trust_counts_from_before_each_request_was_sent(store: Faulty) -> None:
    clock = Monotonic()
    store.late = lambda operation, key: clock.advance(0.5)
    manager = store.manager(monotonic=clock)
    start = clock()
    lease = taken(manager.acquire(claims(), KEEPING))
    ends = [term.trusted_until - start for term in lease.terms]
    assert ends == pytest.approx([n / 2 + TTL - margin(TTL) for n in range(3)])
    assert lease.remaining() == pytest.approx(TTL - margin(TTL) - 1.5)


@pytest.mark.parametrize("epoch", [0, 1, 1023])
def test_the_epoch_stands_in_front_of_the_token_and_both_fit(store: Faulty, epoch: int) -> None:
    store._token = 2**53 - 2
    lease = taken(store.manager(epoch=epoch).acquire(claims(keys="a"), KEEPING))
    assert lease.fencing_token == epoch * 2**53 + 2**53 - 1
    assert lease.fencing_token < 2**63


def test_a_read_lock_has_no_token_in_any_epoch(store: Faulty) -> None:
    lease = taken(store.manager(epoch=7).acquire(claims(keys="a", mode=Mode.SHARED), KEEPING))
    assert lease.terms[0].token == 0
    assert lease.fencing_tokens == {}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("how", ["release", "take back"])
def test_a_process_forked_off_the_holder_frees_nothing(store: Faulty, how: str) -> None:
    lease = taken(store.locks.acquire(claims(), KEEPING))

    def child() -> None:
        if how == "release":
            assert store.locks.release(lease, Outcome.DONE) is True
        else:
            store.locks.take_back(claims())
        assert store.held() == set(KEYS)
        assert watched(store.locks) == set(KEYS)
        assert [operation for operation, _ in store.calls] == ["enter"] * 3

    in_a_forked_child(child)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_off_the_holder_takes_nothing_by_its_manager(store: Faulty) -> None:
    taken(store.locks.acquire(claims(keys="a"), KEEPING))

    def child() -> None:
        with pytest.raises(RuntimeError, match="of the parent process"):
            store.locks.acquire(claims(keys="b"), KEEPING)
        assert store.held() == {"a"}

    in_a_forked_child(child)
    taken(store.locks.acquire(claims(keys="b"), KEEPING))


NARROW, WIDE = 2, 3


def asks(nonce: str, *, keep: bool = False) -> list[Claim]:
    """The claims of a delivery of one task: at a, which two may hold, and b, which three may."""
    narrow, wide = claims(keys="ab", wait=WaitMode.QUEUE, keep=keep)
    return [replace(wide, limit=WIDE, nonce=nonce), replace(narrow, limit=NARROW, nonce=nonce)]


@pytest.mark.parametrize("keep", [False, True])
def test_who_is_woken_before_its_forerunner_has_left_takes_nothing_away(
    store: Faulty, keep: bool
) -> None:
    woken: list[tuple[str, str]] = []

    def wake(wakes: Sequence[Wake]) -> None:
        woken.extend((each.key, each.task) for each in wakes)

    others = [replace(claims(f"o{n}", "b")[0], limit=WIDE) for n in range(WIDE)]
    for other in others:
        store.enter(other)
    early, late = store.manager(wake), store.manager(wake)
    met: list[object] = []

    def is_overtaken(operation: str, key: str) -> None:
        if (operation, key) != ("leave", "a") or met:
            return
        met.append(None)
        early.take_back(others[:1])
        met[0] = late.acquire(asks("2", keep=keep), KEEPING, b"message", woken="b")

    store.fault = is_overtaken
    assert isinstance(early.acquire(asks("1", keep=keep), KEEPING, b"message"), Refused)

    (answer,) = met
    assert isinstance(answer, Refused)
    assert (answer.claim.key, answer.verdict) == ("b", Drop(Reason.WAITING))
    assert [turn.task for turn in store.peek("b").grants] == ["t:0:0"]
    # It is woken once more, at once or after some seconds, and has both
    if keep:
        store.clock.advance(6)
        wake(store.sweep().wakes)
    key, _ = woken[-1]
    lease = taken(late.acquire(asks("3", keep=keep), KEEPING, b"message", woken=key))
    assert lease.keys == ("a", "b")
    late.release(lease, Outcome.DONE)
    assert all("t:0:0" not in str(store.peek(key)) for key in "ab")


def test_while_it_waits_for_a_narrower_limit_it_has_no_turn_at_the_wider_one(
    store: Faulty,
) -> None:
    manager = store.manager(lambda wakes: None)
    others = [replace(claims(f"o{n}", "b")[0], limit=WIDE) for n in range(WIDE)]
    for other in others:
        store.enter(other)
    manager.acquire(asks("1"), KEEPING, b"message")
    manager.take_back([replace(asks("1")[1], wait=WaitMode.NOT)])
    for n in range(NARROW):
        store.enter(replace(claims(f"n{n}", "a")[0], limit=NARROW))
    manager.take_back(others[:1])

    answer = manager.acquire(asks("2"), KEEPING, b"message", woken="b")

    assert answer == Refused(asks("2")[1], Park())
    assert (store.peek("a").parked, store.peek("b").grants) == (1, ())
    # Who comes there next does not wait for it
    assert len(store.peek("b").holders) == WIDE - 1
