"""The threads that ask for a coroutine: in turn, few, and nothing begins after the last call."""

from __future__ import annotations

import asyncio
import threading

import pytest

from celery_dlock.tasks.event_loop import MAX_THREADS, Calls


def test_nothing_is_asked_after_the_last_call() -> None:
    begun: list[str] = []

    async def late() -> None:
        calls = Calls()
        assert await calls.end(lambda: "last") == "last"
        with pytest.raises(asyncio.CancelledError):
            await calls.call(begun.append, "late")

    asyncio.run(late())

    assert begun == []


def test_the_last_call_is_made_though_nobody_waits_for_it() -> None:
    made = threading.Event()

    async def leave() -> None:
        Calls().end(made.set)

    asyncio.run(leave())

    assert made.wait(30)


@pytest.mark.parametrize("last", [True, False])
def test_a_call_cancelled_before_its_turn_is_made_if_it_is_the_last(last: bool) -> None:
    goes_on, made = threading.Event(), threading.Event()

    async def ask() -> None:
        await (Calls().end(made.set) if last else Calls().call(made.set))

    async def impatient() -> None:
        busy = [asyncio.create_task(Calls().call(goes_on.wait, 30)) for _ in range(MAX_THREADS)]
        await asyncio.sleep(0)
        asking = asyncio.create_task(ask())
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        goes_on.set()
        await asyncio.gather(*busy)

    asyncio.run(impatient())

    assert made.wait(30) if last else not made.is_set()
