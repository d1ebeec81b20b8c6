"""A ``lock()`` object is a constant of a module: whoever leaves a block ends that one alone."""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from celery_dlock import (
    Lease,
    Limit,
    LockContended,
    LockLost,
    Shared,
    current_lease,
    lock,
)
from celery_dlock.core.events import Lost
from celery_dlock.core.state import Outcome
from tests.services.desk import Desk

KEY = "catalog"


def readers(desk: Desk) -> int:
    return len(desk.holders(KEY))


def in_with(block: Any) -> Iterator[Lease]:
    with block as lease:
        yield lease


def on_stack(block: Any) -> Iterator[Lease]:
    with ExitStack() as stack:
        yield stack.enter_context(block)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("how", [in_with, on_stack])
def test_each_of_several_threads_leaves_its_own_block(
    desk: Desk, how: Callable[[Any], Iterator[Lease]], order: tuple[int, ...]
) -> None:
    block = lock(Shared(KEY), app=desk.app)
    inside = [how(block) for _ in order]
    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in order]
        pairs = zip(threads, inside, strict=True)
        leases = [thread.submit(next, block).result(30) for thread, block in pairs]
        for left, number in enumerate(order):
            assert readers(desk) == 3 - left
            leases[number].check()
            threads[number].submit(next, inside[number], None).result(30)
    assert readers(desk) == 0


@pytest.mark.parametrize("one_context", [False, True])
def test_each_of_several_coroutines_leaves_its_own_block(desk: Desk, one_context: bool) -> None:
    block = lock(Shared(KEY), app=desk.app)

    async def read(inside: asyncio.Event, leave: asyncio.Event) -> None:
        async with AsyncExitStack() as exits:
            lease = await exits.enter_async_context(block)
            inside.set()
            await leave.wait()
            lease.check()

    async def main() -> None:
        context = contextvars.copy_context()
        events = [(asyncio.Event(), asyncio.Event()) for _ in range(3)]
        tasks = []
        for inside, leave in events:
            options: Any = {"context": context} if one_context else {}
            tasks.append(asyncio.create_task(read(inside, leave), **options))
            # In one context each is nested in the one before, until that has left.
            await inside.wait()
        for (_, leave), task in zip(reversed(events), reversed(tasks), strict=True):
            leave.set()
            await task

    asyncio.run(main())

    assert readers(desk) == 0


def test_a_generator_that_another_coroutine_closes_leaves_its_own_block(desk: Desk) -> None:
    block = lock(Shared(KEY), app=desk.app)

    async def read() -> AsyncIterator[Lease]:
        async with block as lease:
            yield lease

    async def main() -> None:
        streams = [read() for _ in range(3)]
        leases: list[Any] = [await asyncio.create_task(anext(stream)) for stream in streams]  # type: ignore[arg-type]
        await asyncio.create_task(streams[1].aclose())  # type: ignore[attr-defined]
        assert await asyncio.to_thread(readers, desk) == 2
        assert [lease.lost for lease in leases] == [False, True, False]
        for stream in (streams[0], streams[2]):
            await asyncio.create_task(stream.aclose())  # type: ignore[attr-defined]

    asyncio.run(main())

    assert readers(desk) == 0


def test_what_is_entered_in_one_thread_may_be_left_in_another_if_it_is_alone(desk: Desk) -> None:
    block = lock(Shared(KEY), app=desk.app)
    first, second = ExitStack(), ExitStack()
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
        pool.submit(first.enter_context, block).result(30)
        pool.submit(contextvars.Context().run, second.enter_context, block).result(30)
        assert readers(desk) == 1 + 1
        with pytest.raises(RuntimeError, match="a lock\\(\\) of its own"):
            other.submit(block.__exit__, None, None, None).result(30)
        assert readers(desk) == 1 + 1
        pool.submit(second.close).result(30)
        other.submit(first.close).result(30)
    assert readers(desk) == 0
    with pytest.raises(RuntimeError, match="is left already"):
        block.__exit__(None, None, None)


def test_of_several_who_acquire_and_release_one_object_one_does(desk: Desk) -> None:
    block = lock(Limit(KEY, 9), app=desk.app, timeout=0)
    start = threading.Barrier(8)

    def ends(call: Callable[[], object]) -> bool:
        start.wait(30)
        try:
            call()
        except RuntimeError:
            return False
        return True

    for call in (block.acquire, block.release):
        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(ends, [call] * 8)) == 1
        assert readers(desk) == (call == block.acquire)


def test_what_could_not_be_acquired_can_be_tried_again(desk: Desk) -> None:
    block = lock(KEY, app=desk.app, timeout=0)
    with lock(KEY, app=desk.app), pytest.raises(LockContended):
        contextvars.Context().run(block.acquire)
    block.acquire()
    with pytest.raises(LockContended), block:
        pytest.fail("it has a key of its own, which is not re-entrant")
    block.release()
    with block, block as lease:
        lease.check()
    assert readers(desk) == 0


def test_it_names_its_key_and_whether_it_is_held_by_it(desk: Desk) -> None:
    block = lock(["a", "b"], app=desk.app)
    assert repr(block) == "<lock() of 'a', 'b': not held by it>"
    with block:
        assert repr(block) == "<lock() of 'a', 'b': held by 1 of its blocks>"


def nested(block: Any, go: threading.Event, inside: threading.Event) -> str:
    with block:
        inside.set()
        assert go.wait(30)
    return "ended as if nothing had happened"


@pytest.mark.parametrize("own", [False, True])
def test_a_nested_block_that_outlives_the_one_around_it_says_so(desk: Desk, own: bool) -> None:
    outer = lock(KEY, app=desk.app)
    inner = lock(KEY, app=desk.app) if own else outer
    go, inside = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with outer:
            context = contextvars.copy_context()
            ends = pool.submit(context.run, nested, inner, go, inside)
            assert inside.wait(30)
        with lock(KEY, app=desk.app, timeout=0):
            go.set()
            with pytest.raises(LockLost, match="released"):
                ends.result(30)
        with pytest.raises(LockLost, match="released"):
            context.run(nested, inner, go, inside)
    assert readers(desk) == 0


def test_a_nested_coroutine_that_outlives_the_block_around_it_is_told(desk: Desk) -> None:
    block = lock(KEY, app=desk.app)

    async def inner(
        inside: asyncio.Event, go: asyncio.Event, error: type[Exception] | None
    ) -> None:
        async with block:
            inside.set()
            await go.wait()
            if error:
                raise error

    async def main(error: type[Exception] | None) -> None:
        inside, go = asyncio.Event(), asyncio.Event()
        async with block:
            task = asyncio.create_task(inner(inside, go, error))
            await inside.wait()
        go.set()
        with pytest.raises(error or LockLost):
            await task

    asyncio.run(main(None))
    asyncio.run(main(KeyError))  # an error of its own is not hidden

    assert readers(desk) == 0


def steal(desk: Desk) -> None:
    """As an operator releases the key, or a store that has forgotten it."""
    store = desk.store
    for holder in store.peek(KEY).holders:
        claim = current_lease().terms[0].claim
        assert claim.nonce == holder.nonce
        store.leave(claim, Outcome.OVER)


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("error", [None, KeyError("of the block")])
def test_a_lost_lock_is_an_error_at_the_end_of_a_block(
    desk: Desk, awaits: bool, error: Exception | None
) -> None:
    block, ran = lock(KEY, app=desk.app), []

    def body() -> None:
        steal(desk)
        if error:
            raise error
        ran.append(True)

    def plain() -> None:
        with block:
            body()

    async def coroutine() -> None:
        async with block:
            await asyncio.to_thread(body)

    with pytest.raises((LockLost, KeyError)) as raised:
        asyncio.run(coroutine()) if awaits else plain()

    if error:  # its own goes on
        assert raised.value is error
    else:
        assert isinstance(raised.value, LockLost)
        assert raised.value.key == KEY
        assert re.search("is lost: .* has run .* look at lease.lost", str(raised.value))
    assert ran == ([] if error else [True])
    assert readers(desk) == 0
    assert [event.key for event in desk.happened(Lost)] == [KEY]


def test_a_loss_that_another_thread_is_about_to_tell_is_an_error_too(desk: Desk) -> None:
    block = on_stack(lock(KEY, app=desk.app))
    term = next(block).terms[0]
    term.lose("the process was paused")
    assert term.first_to_tell()  # as the keeper's thread, which has not yet

    with pytest.raises(LockLost, match="paused"):
        next(block)


def test_a_lost_lock_that_is_released_is_an_error_and_may_be_acquired_again(desk: Desk) -> None:
    block = lock(KEY, app=desk.app)
    for _ in range(2):
        block.acquire().terms[0].lose("the process was paused")
        with pytest.raises(LockLost, match="paused"):
            block.release()


def test_a_nested_block_tells_of_a_loss_and_so_does_the_one_around_it(desk: Desk) -> None:
    around, nested = (on_stack(lock(KEY, app=desk.app)) for _ in range(2))
    lease = next(around)
    next(nested)
    lease.terms[0].lose("the process was paused")

    for block in (nested, around):
        with pytest.raises(LockLost, match="paused"):
            next(block)


def test_the_result_of_a_direct_call_stands_as_that_of_a_task(desk: Desk) -> None:
    @desk.locked(KEY, name="search")
    def search() -> str:
        steal(desk)
        return "found"

    assert search() == "found"
    assert [event.key for event in desk.happened(Lost)] == [KEY]
