"""Calls of a store for a coroutine: a driver blocks, so a thread calls it while the loop runs on.

The threads are this library's own, and few: a coroutine that waits for a lock sleeps on the loop,
and needs a thread only while it asks. The loop's default executor is not used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from celery_dlock.errors import ConfigurationError
from celery_dlock.forking import PerProcess

P = ParamSpec("P")
T = TypeVar("T")

#: The most threads of a process, for all its event loops.
MAX_THREADS = 8

_threads = PerProcess(lambda: ThreadPoolExecutor(MAX_THREADS, "celery-dlock-asks"))


class Calls:
    """The blocking calls of one block, one after another, until the last one."""

    def __init__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as exc:
            raise ConfigurationError("async with lock() needs an event loop of asyncio") from exc
        self._turn = threading.Lock()
        self._ended = False

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of *function*. A cancellation does not interrupt it once it has begun."""

        def in_turn() -> T:
            with self._turn:
                if self._ended:
                    raise asyncio.CancelledError
                return function(*args, **kwargs)

        return await asyncio.wrap_future(_threads().submit(in_turn), loop=self._loop)

    def end(self, last: Callable[[], T]) -> asyncio.Future[T]:
        """Call *last* when a call that has begun is over, whether or not anything awaits it.

        No other call begins from now on.
        """

        def in_turn() -> T:
            with self._turn:
                self._ended = True
                return last()

        return asyncio.shield(asyncio.wrap_future(_threads().submit(in_turn), loop=self._loop))
