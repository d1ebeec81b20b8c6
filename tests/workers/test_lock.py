"""``lock()`` in web handlers and scripts: the very locks that tasks take."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any, NoReturn

import pytest

from celery_dlock import (
    BackendUnavailable,
    ConfigurationError,
    Lease,
    Limit,
    LockContended,
    LockLost,
    LockTimeout,
    Ordered,
    StaleFencingToken,
    current_lease,
    lock,
)
from celery_dlock.core.events import Contended, StaleRejected, Unavailable
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.stores.memory import MemoryBackend
from tests.services.desk import Desk, open_desk
from tests.services.holder import held_until_refused
from tests.workers.conftest import charging, held


def test_it_keeps_a_task_of_the_same_key_off(desk: Desk) -> None:
    charge = charging(desk, on_contention="fail")
    with lock("order:42", app=desk.app, ttl=10, timeout=0) as lease:
        refused = charge.delay(42)
        other = charge.delay(43)
        desk.deliver_all()
        assert lease.ttl == 10
        assert desk.holders("order:42") != []

    assert type(refused.result) is LockContended
    assert str(refused.result).startswith("'order:42' is held by lock() on ")
    assert other.get() == 43
    assert desk.holders("order:42") == []


def test_who_holds_a_key_says_what_it_is_and_in_which_process(desk: Desk) -> None:
    found = []

    def note() -> None:
        (holder,) = desk.store.peek("order:42").holders
        found.append((holder.name, holder.where))

    @desk.locked("order:{order}", name="charge")
    def charge(order: int) -> None:
        note()

    charge.delay(42)
    desk.deliver()
    with lock("order:42", app=desk.app):
        note()

    (task, worker), (block, host) = found
    assert (task, block) == ("charge", "lock()")
    assert host == f"{socket.gethostname()}:{os.getpid()}"
    assert worker.endswith(f":{os.getpid()}")


def test_a_task_keeps_it_off_and_is_named(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: int) -> None:
        with pytest.raises(LockContended) as caught, held(desk):
            pytest.fail("it is held")
        assert (type(caught.value), caught.value.holder) == (LockContended, result.id)
        assert 0 < caught.value.seconds_left <= 30

    result = charge.delay(42)
    desk.deliver()
    assert result.get() is None


def test_its_tokens_and_those_of_tasks_are_one_sequence(desk: Desk) -> None:
    @desk.locked("k", name="charge")
    def charge(*, fencing_token: int) -> int:
        return fencing_token

    tokens = []
    for _ in range(3):
        with lock("k", app=desk.app) as lease:
            tokens.append(lease.fencing_token)
        tokens.append(charge())

    assert tokens == sorted(set(tokens))


def test_it_waits_until_the_key_is_free(desk: Desk) -> None:
    with held_until_refused(desk, "k") as token, lock("k", app=desk.app, timeout=30) as lease:
        assert lease.fencing_token > token


def test_it_gives_up_after_its_timeout(desk: Desk) -> None:
    before = time.monotonic()

    with (
        held(desk, "k") as other,
        pytest.raises(LockTimeout) as caught,
        lock("k", app=desk.app, timeout=0.2),
    ):
        pytest.fail("it was held")

    assert 0.2 <= caught.value.waited <= time.monotonic() - before
    assert other.owner.startswith(str(caught.value.holder))
    assert caught.value.limit == "timeout=0.2 of lock()"


def test_of_several_keys_it_takes_all_or_none(desk: Desk) -> None:
    with held(desk, "b"):
        with pytest.raises(LockContended) as caught, lock(["c", "a", "b"], app=desk.app, timeout=0):
            pytest.fail("b was held")
        assert caught.value.key == "b"
        assert desk.holders("a") == desk.holders("c") == []

    with lock(["c", "a", "b", "a"], app=desk.app, timeout=0) as lease:
        assert lease.keys == ("a", "b", "c")
        assert len(set(lease.fencing_tokens.values())) == 3
        assert all(desk.holders(key) for key in lease.keys)
    assert desk.holders("a") == desk.holders("b") == desk.holders("c") == []


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_however_the_block_ends_nothing_is_held(desk: Desk, error: Any) -> None:
    try:
        with lock("k", app=desk.app) as lease:
            assert current_lease() is lease
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass

    assert desk.holders("k") == []
    with pytest.raises(ConfigurationError):
        current_lease()


def test_it_is_nested_key_by_key(desk: Desk) -> None:
    with lock("a", app=desk.app) as outer:
        with lock(["a", "b"], app=desk.app, timeout=0) as inner:
            assert inner.fencing_tokens["a"] == outer.fencing_token
            assert current_lease() is inner
        assert current_lease() is outer
        assert desk.holders("a") != []
        assert desk.holders("b") == []
    assert desk.holders("a") == []


def test_a_host_that_slept_for_longer_than_the_lease_knows_that_it_is_lost(desk: Desk) -> None:
    awake = time.clock_gettime

    def after_an_hour_of_sleep(clock: int) -> float:
        return awake(clock) + 3600 * (clock == time.CLOCK_BOOTTIME)

    block = lock("k", app=desk.app, ttl=30)
    lease = block.acquire()
    lease.check()
    desk.patch.setattr(time, "clock_gettime", after_an_hour_of_sleep)
    with pytest.raises(LockLost, match="not renewed in time"):
        lease.check()
    with pytest.raises(LockLost, match="has run"):
        block.release()


def test_one_of_several_slots_is_not_the_key_alone(desk: Desk) -> None:
    @desk.locked("k", name="alone")
    def alone() -> str:
        return "ran"

    with lock(Limit("k", 3), app=desk.app):
        with pytest.raises(LockContended), lock("k", app=desk.app):
            pytest.fail("two others may hold it")
        with pytest.raises(LockContended):
            alone()
        with lock(Limit("k", 2), app=desk.app):
            pass  # the key has one limit, and this task is one of those that have a slot
    with lock("k", app=desk.app), lock(Limit("k", 3), app=desk.app):
        pass  # who is alone is one of three, too


def test_an_unavailable_store_is_waited_for_once_each_way(desk: Desk) -> None:
    asked = []

    def away(self: object, *args: object) -> None:
        asked.append(args)
        raise BackendUnavailable("no answer")

    for operation in ("enter", "leave"):
        desk.patch.setattr(MemoryBackend, operation, away)
    with pytest.raises(BackendUnavailable), lock("k", app=desk.app, timeout=0):
        pytest.fail("nobody knows")

    assert len(asked) == 2
    assert [event.subject.task_name for event in desk.happened(Unavailable)] == ["lock()"]


def test_a_late_write_that_ends_a_block_is_told(desk: Desk) -> None:
    def write(lease: Lease) -> NoReturn:
        raise StaleFencingToken("order:42", lease.fencing_token, lease.fencing_token + 1)

    async def in_a_coroutine() -> None:
        async with lock("k", app=desk.app) as lease:
            write(lease)

    with pytest.raises(StaleFencingToken) as plain, lock("k", app=desk.app) as lease:
        write(lease)
    with pytest.raises(StaleFencingToken) as awaited:
        asyncio.run(in_a_coroutine())

    refused = desk.happened(StaleRejected)
    assert [event.mine for event in refused] == [plain.value.mine, awaited.value.mine]
    assert {event.subject.task_name for event in refused} == {"lock()"}


def test_without_app_it_is_the_current_ones() -> None:
    with open_desk() as desk, lock("k") as lease:
        assert desk.holders("k") == [lease.owner.rpartition("|")[0]]


@pytest.mark.parametrize(
    "options", [{"ttl": 0}, {"ttl": -1}, {"timeout": -1}, {"timeout": float("nan")}]
)
def test_what_makes_no_sense_is_refused(desk: Desk, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError), lock("k", app=desk.app, **options):
        pytest.fail("it was taken")


@pytest.mark.parametrize("key", ["", [], [""], 7, ["a", 7], None, Limit("k", 0)])
def test_a_key_that_is_none_is_refused(desk: Desk, key: Any) -> None:
    with pytest.raises((ConfigurationError, TypeError)), lock(key, app=desk.app):
        pytest.fail("it was taken")


def test_code_that_cannot_use_with_acquires_and_releases(desk: Desk) -> None:
    block = lock("order:42", app=desk.app, timeout=0)
    lease = block.acquire()
    assert desk.holders("order:42") == [lease.owner.rpartition("|")[0]]
    with pytest.raises(LockContended):
        lock("order:42", app=desk.app, timeout=0).acquire()

    other_thread = threading.Thread(target=block.release)
    other_thread.start()
    other_thread.join()

    assert desk.holders("order:42") == []
    with pytest.raises(LockLost, match="it was released"):
        lease.check()
    with block:  # and is as good as new
        assert desk.holders("order:42")


def test_what_is_acquired_is_neither_current_nor_re_entrant(desk: Desk) -> None:
    block = lock("order:42", app=desk.app, timeout=0)
    block.acquire()
    with pytest.raises(ConfigurationError, match="no lock is held here"):
        current_lease()
    with pytest.raises(LockContended), lock("order:42", app=desk.app, timeout=0):
        pass
    block.release()


def test_a_release_frees_nothing_that_somebody_else_has_by_now(desk: Desk) -> None:
    block = lock("order:42", app=desk.app, timeout=0)
    block.acquire()
    (mine,) = desk.store.peek("order:42").holders
    claim = Claim("order:42", mine.task, mine.nonce, ttl=0)
    desk.store.leave(claim, Outcome.ABANDONED)  # as an operator does
    with lock("order:42", app=desk.app, timeout=0) as lease:
        with pytest.raises(LockLost):
            block.release()
        assert desk.holders("order:42") == [lease.owner.rpartition("|")[0]]


def test_to_release_twice_or_to_acquire_twice_is_an_error(desk: Desk) -> None:
    block = lock("order:42", app=desk.app, timeout=0)
    with pytest.raises(RuntimeError, match="is not acquired"):
        block.release()
    block.acquire()
    with pytest.raises(RuntimeError, match="is acquired already"):
        block.acquire()
    block.release()
    with pytest.raises(RuntimeError, match="or is released already"):
        block.release()


def test_a_lock_of_which_only_the_lease_is_kept_is_not_released_by_chance(desk: Desk) -> None:
    lease = lock("order:42", app=desk.app, timeout=0).acquire()
    gc.collect()
    lease.check()
    assert desk.holders("order:42")


# What it asks of its store.


@pytest.fixture
def asked(desk: Desk) -> list[str]:
    """What the store is asked, from now on."""
    questions: list[str] = []
    backend = desk.store
    enter, leave = backend.enter, backend.leave

    def entering(claim: Claim, *args: Any) -> Any:
        questions.append(f"enter {claim.key}")
        return enter(claim, *args)

    def leaving(claim: Claim, *args: Any) -> Any:
        questions.append(f"leave {claim.key}")
        return leave(claim, *args)

    desk.patch.setattr(backend, "enter", entering)
    desk.patch.setattr(backend, "leave", leaving)
    return questions


def test_a_task_asks_twice_and_twice_more_to_wait(desk: Desk, asked: list[str]) -> None:
    charge = charging(desk, "k", on_contention="queue")
    charge.delay()
    desk.deliver()
    assert asked == ["enter k", "leave k"]

    block = lock("k", app=desk.app, timeout=0)
    with block:
        asked.clear()
        charge.delay()
        desk.deliver()
        assert asked == ["enter k", "enter k"]  # the second time with its message
    asked.clear()
    desk.deliver()
    assert asked == ["enter k", "leave k"]

    @desk.locked("k", name="published", on_contention=Ordered())
    def published() -> None: ...

    asked.clear()
    published.delay()
    assert (asked, desk.size()) == (["enter k"], 1)
    desk.deliver()
    assert asked == ["enter k", "enter k", "leave k"]


def test_one_that_is_refused_gives_nothing_back(desk: Desk, asked: list[str]) -> None:
    desk.store.enter(Claim("k", "other:0:0", "nonce", ttl=9 * SECOND))
    asked.clear()
    with pytest.raises(LockContended), lock("k", app=desk.app, timeout=0):
        pytest.fail("another has it")
    assert asked == ["enter k"]


def test_that_it_waits_is_told_once(desk: Desk) -> None:
    backend = desk.store
    other, enter = Claim("k", "other:0:0", "nonce", ttl=9 * SECOND), backend.enter
    enter(other)
    refused: list[Claim] = []

    def free_after_three(claim: Claim, *args: Any) -> Any:
        if len(refused) == 3:
            backend.leave(other, Outcome.OVER)
        refused.append(claim)
        return enter(claim, *args)

    desk.patch.setattr(backend, "enter", free_after_three)
    with lock("k", app=desk.app, timeout=30):
        assert len(desk.happened(Contended)) == 1


def test_below_a_lost_lock_its_key_is_not_held(desk: Desk, asked: list[str]) -> None:
    @desk.locked("k", name="below")
    def below() -> str:
        return "ran"

    with ExitStack() as stack:
        stack.enter_context(pytest.raises(LockLost, match="has run"))
        lease = stack.enter_context(lock("k", app=desk.app))
        assert below() == "ran"
        lease.terms[0].lose("the process was stopped")
        asked.clear()
        with pytest.raises(LockLost, match="was stopped"), lock(["a", "k"], app=desk.app):
            pytest.fail("somebody else may have it")
        with pytest.raises(LockLost, match="was stopped"):
            below()
        assert asked == []
        with lock("other", app=desk.app):
            pass
