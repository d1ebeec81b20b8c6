"""Coroutines in a green thread: their event loop waits where the schedule lets others go on.

It is asyncio's own, written in Python, but for the sockets that it would listen to; and for the
threads of ``async with lock()``, each of which does one thing here.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from greenlet import getcurrent

from tests.simulation.kernel import Green, Kernel

T = TypeVar("T")


class Loop(asyncio.BaseEventLoop):
    """One of a green thread; what it would select from, too, where nothing ever comes."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._begun: list[asyncio.Task[Any]] = []
        self._waiting: Green | None = None
        self._told = False

    def create_task(self, *args: Any, **options: Any) -> Any:
        task = super().create_task(*args, **options)
        self._begun.append(task)
        return task

    def select(self, seconds: float | None) -> Sequence[Any]:
        if seconds != 0 and not self._told:
            kernel = Kernel.here()
            self._waiting = kernel.me()
            kernel.wait(seconds)
        self._waiting, self._told = None, False
        return ()

    def _process_events(self, _: Sequence[Any]) -> None: ...

    def _write_to_self(self) -> None:
        self._told = True
        if self._waiting is not None:
            Kernel.here().wake(self._waiting)

    def end(self) -> None:
        """As ``asyncio.run()`` does: what is left is cancelled, and may still give back."""
        for task in self._begun:
            task.cancel()
        self.run_until_complete(asyncio.gather(*self._begun, return_exceptions=True))
        self.close()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run()``."""
    loop = Loop()
    try:
        return cast("T", loop.run_until_complete(loop.create_task(coroutine)))
    finally:
        loop.end()


class Threads:
    """In place of a pool of threads."""

    def submit(self, call: Callable[[], T]) -> Future[T]:
        kernel, asked = Kernel.here(), Future[T]()

        def answer() -> None:
            if not asked.set_running_or_notify_cancel():
                return
            try:
                answer = call()
            except (Exception, asyncio.CancelledError) as exc:
                asked.set_exception(exc)
            else:
                asked.set_result(answer)

        kernel.spawn(kernel.me().process, answer, "asks")
        return asked


def _running_loop() -> Any:
    return getattr(getcurrent(), "loop", None)


def _set_running_loop(loop: Any) -> None:
    getcurrent().loop = loop


def install() -> None:
    """From now on each green thread of this process has a running loop of its own."""
    vars(events).update(_get_running_loop=_running_loop, _set_running_loop=_set_running_loop)
