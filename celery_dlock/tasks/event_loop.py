"""What asks a store for a coroutine: its driver blocks, so a thread calls it and the loop runs on.

The threads are this library's own, and few: who waits for a lock sleeps on the loop, and needs one
only while it asks. No thread of the loop's default executor is taken.
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

#: Threads of one process, for all its event loops.
MOST = 8

_threads = PerProcess(lambda: ThreadPoolExecutor(MOST, "celery-dlock-asks"))


class Calls:
    """The blocking calls of one block, one after another, until the last one."""

    def __init__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as exc:
            raise ConfigurationError("async with lock() needs an event loop of asyncio") from exc
        self._one_at_a_time = threading.Lock()
        self._over = False

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What *function* returns. Cancelling does not interrupt it, if it has begun."""

        def in_turn() -> T:
            with self._one_at_a_time:
                if self._over:
                    raise asyncio.CancelledError
                return function(*args, **kwargs)

        return await asyncio.wrap_future(_threads().submit(in_turn), loop=self._loop)

    def end(self, last: Callable[[], T]) -> asyncio.Future[T]:
        """Call *last* when a call that has begun is over, whether or not anybody waits for it.

        No other call begins from now on.
        """

        def in_turn() -> T:
            with self._one_at_a_time:
                self._over = True
                return last()

        return asyncio.shield(asyncio.wrap_future(_threads().submit(in_turn), loop=self._loop))
