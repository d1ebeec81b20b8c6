"""The manager over a real store in memory: all keys or none, and the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from celery_dlock.core.lease import NOT_RENEWED, SECOND, margin
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Busy, Claim, Drop, Mode, Outcome, Park, Reason, Run, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks import manager as manager_module
from celery_dlock.locks.manager import Keeping
from celery_dlock.locks.refused import Refused
from celery_dlock.stores.base import Wake
from celery_dlock.stores.memory import MemoryBackend
from tests.services.faulty import (
    KEEPING,
    KEYS,
    TTL,
    Faulty,
    TimeLimit,
    claims,
    fails_for,
    nth,
    taken,
    watched,
)
from tests.services.forked import in_a_forked_child
from tests.services.monotonic import Monotonic
from tests.services.until import until


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
    return [
        replace(narrow, mode=Mode.LIMITED, limit=NARROW, nonce=nonce),
        replace(wide, mode=Mode.LIMITED, limit=WIDE, nonce=nonce),
    ]


@pytest.mark.parametrize("keep", [False, True])
def test_who_is_woken_before_its_forerunner_has_left_takes_nothing_away(
    store: Faulty, keep: bool
) -> None:
    woken: list[tuple[str, str]] = []

    def wake(wakes: Sequence[Wake]) -> None:
        woken.extend((each.key, each.task) for each in wakes)

    others = [replace(claims(f"o{n}", "b")[0], mode=Mode.LIMITED, limit=WIDE) for n in range(WIDE)]
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


def test_who_waits_at_the_narrower_limit_has_no_turn_at_the_wider(store: Faulty) -> None:
    manager = store.manager(lambda wakes: None)
    others = [replace(claims(f"o{n}", "b")[0], mode=Mode.LIMITED, limit=WIDE) for n in range(WIDE)]
    for other in others:
        store.enter(other)
    manager.acquire(asks("1"), KEEPING, b"message")
    manager.take_back([replace(asks("1")[0], wait=WaitMode.NOT)])
    for n in range(NARROW):
        store.enter(replace(claims(f"n{n}", "a")[0], mode=Mode.LIMITED, limit=NARROW))
    manager.take_back(others[:1])

    answer = manager.acquire(asks("2"), KEEPING, b"message", woken="b")

    assert answer == Refused(asks("2")[0], Park())
    assert (store.peek("a").parked, store.peek("b").grants) == (1, ())
    # Who comes there next does not wait for it
    assert len(store.peek("b").holders) == WIDE - 1


# The manager with a fault planted at each of its calls: nothing stays held.


def test_a_request_without_an_answer_is_taken_back(store: Faulty) -> None:
    store.late = fails_for(("enter", "b"))
    with pytest.raises(BackendUnavailable):
        store.locks.acquire(claims(), KEEPING)
    assert ("enter", "b") in store.calls
    assert store.held() == set()
    assert watched(store.locks) == set()


def test_a_store_whose_answers_are_lost_for_a_while_puts_nothing_aside(store: Faulty) -> None:
    store.late = fails_for(("enter", "a"))
    for nonce in range(MAX_LOST_RUNS):
        asks = claims(keys=["a"], wait=WaitMode.QUEUE, patience=9 * SECOND)
        with pytest.raises(BackendUnavailable):
            store.locks.acquire([replace(asks[0], nonce=f"{nonce}")], KEEPING, b"message")
    store.late = fails_for()
    answer = store.locks.acquire(claims(keys=["a"], wait=WaitMode.QUEUE), KEEPING, b"message")
    assert taken(answer).keys == ("a",)
    assert store.dead() == []


@pytest.mark.parametrize("failing", ["a", "b"])
@pytest.mark.parametrize("options", [{}, {"keep": True}, {"ordered": True}], ids=str)
def test_nobody_overtakes_a_task_that_did_not_hear_that_its_turn_has_come(
    store: Faulty, failing: str, options: dict[str, bool]
) -> None:
    def asks(task: str) -> list[Claim]:
        asked = claims(task, ["a", "b"], wait=WaitMode.QUEUE, patience=9 * SECOND)
        return [replace(claim, **options) for claim in asked]  # type: ignore[arg-type]

    holder = taken(store.manager().acquire(claims("holder", ["a"]), KEEPING))
    store.enter(asks("first")[0], b"first")
    store.enter(asks("second")[0], b"second")
    store.managers[-1]._wake = lambda wakes: None
    store.managers[-1].release(holder, Outcome.DONE)
    store.late = fails_for(("enter", failing), ("leave", "a"), ("leave", "b"))
    with pytest.raises(BackendUnavailable):
        store.locks.acquire(asks("first"), KEEPING, b"first", woken="a")
    store.late = fails_for()
    assert store.held() == set()
    assert store.message("a", "first:0:0") == b"first"
    (copy,) = [replace(claim, nonce="copy") for claim in asks("first")[:1]]
    assert store.enter(asks("second")[0], b"second").verdict == Drop(Reason.WAITING)
    assert isinstance(store.enter(copy, b"first").verdict, Run)


def test_a_task_that_reads_its_first_key_keeps_its_turn(store: Faulty) -> None:
    read, *writes = claims(wait=WaitMode.QUEUE, patience=9 * SECOND)
    store.late = fails_for(("enter", "c"))
    with pytest.raises(BackendUnavailable):
        store.locks.acquire(
            [replace(read, mode=Mode.SHARED), *writes], KEEPING, b"m", parents=["a", "b"]
        )
    assert [store.message(key, "t:0:0") for key in KEYS] == [None, None, b"m"]


def test_the_error_is_that_of_the_request_even_when_taking_back_fails_too(store: Faulty) -> None:
    store.late = fails_for(("enter", "b"))
    store.fault = fails_for(("leave", "a"), ("leave", "b"))
    with pytest.raises(BackendUnavailable, match="no answer to enter b"):
        store.locks.acquire(claims(), KEEPING)
    # What cannot be reached expires with its lease, for nobody renews it
    assert store.held() == {"a", "b"}
    assert watched(store.locks) == set()
    store.late = fails_for()
    store.clock.advance(TTL)
    assert taken(store.locks.acquire(claims("next"), KEEPING)).keys == KEYS


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, len(KEYS) + 1))
def test_a_time_limit_while_acquiring_holds_nothing(store: Faulty, number: int, late: bool) -> None:
    strikes = nth(number, TimeLimit())
    if late:
        store.late = strikes
    else:
        store.fault = strikes
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert len(store.calls) == number + len(KEYS)
    assert store.held() == set()
    assert watched(store.locks) == set()


@pytest.mark.parametrize("number", range(1, len(KEYS) + 3))
def test_a_time_limit_while_being_refused_leaves_nothing_held(store: Faulty, number: int) -> None:
    taken(store.manager().acquire(claims("holder", ["c"]), KEEPING))
    store.late = nth(number, TimeLimit())
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert store.held() == {"c"}


@pytest.mark.parametrize("number", range(1, len(KEYS) + 1))
def test_a_time_limit_while_the_keeper_takes_over_leaves_nothing_held(
    store: Faulty, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    strikes = nth(number, TimeLimit())
    watch = store.locks._keeper.watch

    def interrupted(*arguments: object) -> None:
        watch(*arguments)  # type: ignore[arg-type]
        strikes("watch", "")

    monkeypatch.setattr(store.locks._keeper, "watch", interrupted)
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert store.held() == set()
    assert watched(store.locks) == set()


def test_a_time_limit_while_the_lease_is_made_leaves_nothing_held(
    store: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise TimeLimit

    monkeypatch.setattr(manager_module, "Lease", interrupted)
    with pytest.raises(TimeLimit):
        store.locks.acquire(claims(), KEEPING)
    assert store.held() == set()
    assert watched(store.locks) == set()


@pytest.mark.parametrize("number", range(1, 2 * len(KEYS) + 1))
def test_a_time_limit_while_releasing_can_be_made_good(store: Faulty, number: int) -> None:
    lease = taken(store.locks.acquire(claims(), KEEPING))
    strikes = nth(number, TimeLimit())
    store.fault = store.late = strikes
    with pytest.raises(TimeLimit):
        store.locks.release(lease, Outcome.DONE)
    assert watched(store.locks) == set()
    store.locks.release(lease, Outcome.DONE)
    assert store.held() == set()


@pytest.mark.parametrize("struck", [True, False], ids=["a time limit", "no answer"])
def test_who_was_woken_in_a_lost_answer_is_woken_again(store: Faulty, struck: bool) -> None:
    woken: list[str] = []
    manager = store.manager(lambda wakes: woken.extend(wake.task for wake in wakes))
    lease = taken(manager.acquire(claims(keys=["a"]), KEEPING))
    store.enter(claims("next", ["a"], wait=WaitMode.QUEUE)[0], b"message")
    store.late = nth(1, TimeLimit() if struck else BackendUnavailable("no answer"))
    with pytest.raises(TimeLimit if struck else BackendUnavailable):
        manager.release(lease, Outcome.DONE)
    assert woken == []
    if struck:
        manager.release(lease, Outcome.DONE)
    until("it is called", lambda: woken == ["next:0:0"])
    assert [term.noticed for term in lease.terms] == [None]


@pytest.mark.parametrize("in_time", [True, False])
def test_a_lease_that_ended_before_it_was_given_back_is_lost_and_one_that_ends_meanwhile_is_not(
    store: Faulty, in_time: bool
) -> None:
    manager = store.manager(monotonic=lambda: store.clock() / SECOND)
    lease = taken(manager.acquire(claims(keys=["a"]), Keeping(None, lambda *_: None)))
    if not in_time:
        store.clock.advance(TTL)
    store.fault = lambda operation, key: store.clock.advance(TTL)
    store.late = fails_for(("leave", "a"))
    with pytest.raises(BackendUnavailable):
        manager.release(lease, Outcome.DONE)
    store.fault = store.late = fails_for()
    manager.close()
    noticed = [term.noticed for term in lease.terms]
    assert noticed == [None if in_time else NOT_RENEWED]


@pytest.mark.parametrize("failing", KEYS)
def test_a_key_that_is_not_released_keeps_no_other(store: Faulty, failing: str) -> None:
    lease = taken(store.locks.acquire(claims(), KEEPING))
    store.fault = fails_for(("leave", failing))
    with pytest.raises(BackendUnavailable):
        store.locks.release(lease, Outcome.DONE)
    assert store.held() == {failing}
    assert watched(store.locks) == set()


def test_who_asks_for_a_key_that_its_own_process_has_not_released_yet_gets_it(
    store: Faulty,
) -> None:
    lease = taken(store.locks.acquire(claims(keys=["a"]), KEEPING))
    store.fault = fails_for(("leave", "a"))
    with pytest.raises(BackendUnavailable):
        store.locks.release(lease, Outcome.OVER)
    assert isinstance(store.locks.acquire(claims("next", ["a"]), KEEPING), Refused)
    store.fault = fails_for()

    next_lease = taken(store.locks.acquire(claims("next", ["a"]), KEEPING))

    until("it is told again", lambda: not store.locks._pending_releases._pending)
    assert store.held() == {"a"}
    next_lease.check()


def test_a_task_without_a_lease_is_not_woken_for_an_outage(store: Faulty) -> None:
    (mine,) = claims(keys=["a"], wait=WaitMode.QUEUE, done_ttl=int(TTL * SECOND))
    holder = taken(store.manager().acquire(claims("holder", ["a"]), KEEPING))
    store.enter(mine, b"message")
    store.fault = fails_for(("leave", "a"))
    store.locks.take_back([mine], Outcome.DONE)
    assert store.peek("a").parked == 1
    store.fault = fails_for()
    until("it is heard", lambda: store.peek("a").parked == 0)
    assert store.enter(mine).verdict == Drop(Reason.DONE)
    assert holder.lost is False


@pytest.mark.parametrize("there", [True, False])
def test_what_was_not_heard_is_said_once_more_at_the_end_and_never_after(
    store: Faulty, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(store, "close", lambda: closed.append(len(store.calls)))
    lease = taken(store.locks.acquire(claims(keys=["a"]), KEEPING))
    store.fault = fails_for(("leave", "a"))
    with pytest.raises(BackendUnavailable):
        store.locks.release(lease, Outcome.DONE)
    if there:
        store.fault = fails_for()
    before = len(store.calls)
    store.locks.close()
    assert store.held() == (set() if there else {"a"})
    assert closed == [before + 1]
    assert not store.locks._pending_releases._pending
