"""The blocks of one ``lock()`` object that are entered, and which of them is left.

Python calls ``__exit__`` on the object, and does not say to which ``__enter__`` it belongs. A
``with`` statement calls both from one frame, whichever thread, coroutine or greenlet runs that by
then. Code that calls them from two frames, such as :class:`contextlib.ExitStack`, does so in one
thread or coroutine as a rule (``docs/decisions/0062-a-lock-object-may-be-a-constant.rst``).
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Entry(Generic[T]):
    block: T
    frame: FrameType | None
    runner: tuple[object, ...]


class Entered(Generic[T]):
    """Blocks that are entered, each with the frame and the thread or coroutine that did so.

    Threads may use it at the same time: the list's own steps are atomic.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry[T]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, block: T, frame: FrameType | None) -> None:
        self._entries.append(_Entry(block, frame, _runner()))

    def take(self, frame: FrameType | None) -> T:
        """Remove and return the block that is left from *frame*.

        Raises :exc:`RuntimeError` if none is entered, or if it could be any of several.
        """
        entries, runner = self._entries[::-1], _runner()
        entry = (
            next((e for e in entries if e.frame is frame), None)
            or next((e for e in entries if e.runner == runner), None)
            or (entries[0] if len(entries) == 1 else None)
        )
        if entry is None and entries:
            raise RuntimeError(
                "this lock() is entered several times, and left where it was not entered, so it "
                "cannot tell which block ends: give each of them a lock() of its own"
            )
        try:
            self._entries.remove(entry)  # type: ignore[arg-type]
        except ValueError:
            raise RuntimeError("this lock() is not entered, or is left already") from None
        return entry.block  # type: ignore[union-attr]


def _runner() -> tuple[object, ...]:
    """The running thread, in it the greenlet if it is not the first, and the coroutine."""
    greenlet = asyncio = None
    if "greenlet" in sys.modules:
        from greenlet import getcurrent

        greenlet = getcurrent()
        if greenlet.parent is None:
            greenlet = None
    if "asyncio" in sys.modules:
        from asyncio import current_task

        with suppress(RuntimeError):  # no event loop runs here
            asyncio = current_task()
    return threading.get_ident(), greenlet, asyncio
