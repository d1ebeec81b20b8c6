"""``async with lock()``: the very locks, and an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import Context
from typing import Any

import pytest

from celery_dlock import (
    BackendUnavailable,
    ConfigurationError,
    Limit,
    LockContended,
    LockTimeout,
    Shared,
    current_lease,
    lock,
)
from celery_dlock.runtime import runtime
from celery_dlock.tasks import acquisition
from celery_dlock.tasks.event_loop import MAX_THREADS
from tests.services.desk import Desk
from tests.services.until import until
from tests.workers.conftest import nothing_is_left

#: SQLite ties a connection to its thread.
pytestmark = pytest.mark.stores("sqlite")

KEY = "order:42"


@pytest.fixture
def held(desk: Desk) -> Iterator[threading.Event]:
    """Another thread holds the key until this is set."""
    go, taken = threading.Event(), threading.Event()

    def hold() -> None:
        with lock(KEY, app=desk.app, timeout=0):
            taken.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(30)
    yield go
    go.set()
    thread.join()


async def waits(desk: Desk, how_many: int = 1, who: asyncio.Future[Any] | None = None) -> None:
    """Until so many wait for the key in the store. Raises the error with which *who* has ended."""
    backend = desk.store
    while len((await asyncio.to_thread(backend.peek, KEY)).waiting) < how_many:
        if who is not None and who.done():
            await who
        await asyncio.sleep(0.01)


async def takes(desk: Desk, timeout: float = 60) -> int:
    async with lock(KEY, app=desk.app, timeout=timeout) as lease:
        return lease.fencing_token


@pytest.mark.every_store
def test_a_task_and_a_coroutine_keep_each_other_off(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="fail", max_retries=0)
    def charge(order: int, *, fencing_token: int) -> int:
        with pytest.raises(LockContended):
            Context().run(asyncio.run, takes(desk, timeout=0))
        return fencing_token

    async def block() -> int:
        async with lock(KEY, app=desk.app, timeout=0) as lease:
            refused = charge.delay(42)
            Context().run(desk.deliver)
            assert type(refused.result) is LockContended
            return lease.fencing_token

    first, second, third = asyncio.run(block()), charge(42), asyncio.run(takes(desk))

    assert first < second < third


def test_who_gives_up_or_may_not_wait_holds_nothing(desk: Desk, held: threading.Event) -> None:
    for timeout, error in ((0, LockContended), (0.05, LockTimeout)):
        with pytest.raises(error) as caught:
            asyncio.run(takes(desk, timeout=timeout))
        assert caught.type is error
    assert len(desk.holders(KEY)) == 1


def test_waiting_takes_few_threads_and_none_of_the_loops(desk: Desk, held: threading.Event) -> None:
    desk.patch.setattr(
        acquisition, "PLACE_TTL", 60.0
    )  # a busy machine asks less than once a second

    async def crowd() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = asyncio.gather(*(takes(desk) for _ in range(3 * MAX_THREADS)))
        await waits(desk, 3 * MAX_THREADS, waiting)  # asks in the one thread of the loop's executor
        asks = [t for t in threading.enumerate() if t.name.startswith("celery-dlock-asks")]
        assert 0 < len(asks) <= MAX_THREADS
        held.set()
        assert len(set(await waiting)) == 3 * MAX_THREADS

    asyncio.run(crowd())

    assert nothing_is_left(desk)


def test_cancelled_while_it_waits_it_waits_no_more(desk: Desk, held: threading.Event) -> None:
    async def impatient() -> None:
        waiting = asyncio.create_task(takes(desk))
        await waits(desk)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(impatient())

    backend = desk.store
    until("nobody waits", lambda: not backend.peek(KEY).waiting)
    assert len(backend.peek(KEY).holders) == 1


@pytest.mark.parametrize("answer", ["the lock", "an error"])
def test_cancelled_before_the_store_has_answered_a_thread_gives_it_back(
    desk: Desk, answer: str
) -> None:
    backend = desk.store
    enter = backend.enter
    asked, goes_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        entered = enter(*args)
        asked.set()
        assert goes_on.wait(60)
        if answer == "an error":
            raise BackendUnavailable("the answer is lost")
        return entered

    desk.patch.setattr(backend, "enter", slow)

    async def impatient() -> None:
        asking = asyncio.create_task(takes(desk))
        await asyncio.to_thread(asked.wait, 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking  # at once: the store has not answered yet
        assert len(await asyncio.to_thread(desk.holders, KEY)) == 1
        goes_on.set()

    asyncio.run(impatient())

    until("nobody holds it", lambda: nothing_is_left(desk))


def test_cancelled_in_the_block_it_is_given_back(desk: Desk) -> None:
    async def impatient() -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with lock(KEY, app=desk.app):
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(nothing_is_left, desk)

    asyncio.run(impatient())


def test_cancelled_while_it_gives_back_a_thread_does_so(desk: Desk) -> None:
    manager = runtime(desk.app).manager
    release = manager.release
    asked, goes_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> bool:
        asked.set()
        assert goes_on.wait(60)
        return release(*args)

    desk.patch.setattr(manager, "release", slow)

    async def impatient() -> None:
        leaving = asyncio.create_task(takes(desk))
        await asyncio.to_thread(asked.wait, 60)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        goes_on.set()

    asyncio.run(impatient())

    until("nobody holds it", lambda: nothing_is_left(desk))


def test_inside_it_is_the_current_lease_and_its_key_is_reentrant(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: int, *, fencing_token: int) -> int:
        return fencing_token

    async def stranger(go: asyncio.Event) -> None:
        await go.wait()
        with pytest.raises(ConfigurationError):
            current_lease()
        with pytest.raises(LockContended):
            await takes(desk, timeout=0)

    async def block() -> None:
        go = asyncio.Event()
        other = asyncio.create_task(stranger(go))
        async with lock(KEY, app=desk.app) as lease:
            assert current_lease() is lease
            assert await takes(desk) == lease.fencing_token
            assert await asyncio.create_task(takes(desk)) == lease.fencing_token
            assert await asyncio.to_thread(charge, 42) == lease.fencing_token
            assert lease.remaining() > 0
            go.set()
            await other
        with pytest.raises(ConfigurationError):
            current_lease()

    asyncio.run(block())

    assert nothing_is_left(desk)


@pytest.mark.parametrize("timeout", [5.0, 0.01])
def test_a_plain_with_that_may_wait_is_an_error_on_a_loop(desk: Desk, timeout: float) -> None:
    def plain(timeout: float) -> int:
        with lock(KEY, app=desk.app, timeout=timeout) as lease:
            return lease.fencing_token

    async def handler() -> None:
        with pytest.raises(ConfigurationError, match=r"async with lock\(\.\.\.\).*timeout=0"):
            plain(timeout)
        assert not await asyncio.to_thread(desk.holders, KEY)
        assert plain(0) > 0  # asks once
        assert await asyncio.to_thread(plain, timeout) > 0  # no loop there

    asyncio.run(handler())


def test_without_an_event_loop_of_asyncio_it_says_so(desk: Desk) -> None:
    entering = lock(KEY, app=desk.app).__aenter__()

    with pytest.raises(ConfigurationError, match="asyncio"):
        entering.send(None)
    assert nothing_is_left(desk)


def test_whether_it_is_locked_is_said_without_taking_it(desk: Desk) -> None:
    alone, reader = lock(KEY, app=desk.app), lock(Shared(KEY), app=desk.app)
    one_of_two = lock(Limit(KEY, 2), app=desk.app)
    below = lock(["item:1", Shared(KEY)], app=desk.app)

    def locked() -> list[bool]:
        return [block.locked() for block in (alone, reader, one_of_two, below)]

    assert locked() == [False, False, False, False]
    with alone:
        assert locked() == [True, True, True, True]
    with reader:
        assert locked() == [True, False, True, False]
    with one_of_two:
        assert locked() == [True, True, False, True]
        assert asyncio.run(one_of_two.alocked()) is False
        with ThreadPoolExecutor(1) as other, ExitStack() as stack:
            other.submit(stack.enter_context, lock(Limit(KEY, 2), app=desk.app)).result(60)
            assert one_of_two.locked()
            assert asyncio.run(one_of_two.alocked()) is True
    assert locked() == [False, False, False, False]
    assert nothing_is_left(desk)
