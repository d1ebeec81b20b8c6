"""What belongs to one process only: a forked child starts without its parent's.

A connection that two processes use mixes up their answers, one that the wrong process closes ends
the other's session, and a lock may have been held by a thread that the child does not have. So
whatever keeps such things has each process make its own (:class:`PerProcess`), or is told in the
child (:func:`tell`). Nothing of this is asked at each operation.

A hook of Python's tells of a fork. It is not called where C code forks, as uWSGI does unless it is
told to; that is noticed by whoever begins something in this process (:func:`notice`).

What has to happen before a fork is not decided here: see
:mod:`~celery_dlock.stores.sql.sqlite_file` and :mod:`~celery_dlock.stores.subprocess`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

logger = logging.getLogger("celery_dlock")

T = TypeVar("T")


class Forked(Protocol):
    """Something that has to know that it is in another process now."""

    def after_fork_in_child(self) -> None:
        """Leave to the parent what is the parent's.

        There is one thread, and any lock may be taken for good. No request, and no new thread.
        """


class _Process:
    """The number of this process, and who has to know when it changes."""

    def __init__(self) -> None:
        self.listeners: WeakSet[Any] = WeakSet()
        self.of_parents: list[object] = []
        self._pid = os.getpid()
        self._mutex = threading.Lock()

    def notice(self) -> None:
        """Tell of a fork that Python did not hear of. Asks the system for one number."""
        if self._pid != os.getpid():
            with self._mutex:
                if self._pid != os.getpid():
                    self._tell_all()

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        self._tell_all()

    def _tell_all(self) -> None:
        for thing in list(self.listeners):
            try:
                thing.after_fork_in_child()
            except Exception:  # the others have something to leave, too
                logger.exception(
                    "%r could not be reset in a forked child, and may share state with its parent",
                    thing,
                )
        self._pid = os.getpid()  # only now: other threads wait until all is left


_process = _Process()
notice = _process.notice
os.register_at_fork(after_in_child=_process.after_fork_in_child)


def tell(thing: Forked) -> None:
    """Have ``thing.after_fork_in_child()`` called in each forked child, as long as it is there."""
    _process.listeners.add(thing)


def keep(thing: object) -> None:
    """Never collect *thing*, which is the parent's: that would close it."""
    _process.of_parents.append(thing)


class PerProcess(Generic[T]):
    """Something that each process *makes* when it first needs it, once for all its threads.

    Call it to have it. A forked child has none at first; *let_go* is called there with its
    parent's, which is kept.
    """

    def __init__(
        self, make: Callable[[], T], let_go: Callable[[T], object] = lambda parents: None
    ) -> None:
        self._make = make
        self._let_go = let_go
        self._mutex = threading.Lock()
        self._made: T | None = None
        tell(self)

    def __call__(self) -> T:
        made = self._made
        if made is None:
            with self._mutex:
                made = self._made
                if made is None:
                    made = self._made = self._make()
        return made

    def made(self) -> T | None:
        """It, if this process has made it."""
        return self._made

    def take(self, only: T | None = None) -> T | None:
        """It, if this process has made it, and it is *only*, if given; the next use makes another.

        So it is taken once, however many do so, and it is for the caller to close it.
        """
        with self._mutex:
            made = self._made
            if only is not None and only is not made:
                return None
            self._made = None
        return made

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        parents, self._made = self._made, None
        if parents is not None:
            keep(parents)
            self._let_go(parents)
