"""The main process of a prefork worker watches its children, and acts when one is gone.

A child that is killed cannot give back what it holds, and nobody renews it any more. The main
process knows what the child was at, because it sent it there. It waits for the end of the process
itself: Celery announces a revocation or a time limit while the body may still be writing.

All that follows from a death happens in one thread, so that the store may be slow without the
worker's loop noticing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any, ClassVar

from celery import bootsteps

from celery_dlock.tasks.processes import Processes, processes

logger = logging.getLogger("celery_dlock")

#: Seconds that the end of the worker waits for what its children have left behind.
LAST_WORDS = 5.0

Call = Callable[[], object]


class Children:
    """Who is to be called when a child is gone; and the thread that calls.

    No lock: Celery shuts down inside a signal handler, which may interrupt any line here.
    """

    #: Those of this worker; ``None`` where its bodies run in no processes of their own.
    here: ClassVar[Children | None] = None

    def __init__(self, watched: Processes) -> None:
        self._watched = watched
        self._gone: dict[int, Call] = {}
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="celery-dlock-children", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, pid: int, gone: Call) -> None:
        """Call *gone* after the end of *pid*, instead of what was to be called until now."""
        self._gone[pid] = gone  # first: the thread may just be taking the one before
        try:
            self._watched.watch(pid)
        except OSError as exc:
            logger.warning("what %d holds would be held until its lease ends: %s", pid, exc)

    def call(self, call: Call) -> None:
        """Have the thread call it, soon."""
        self._calls.put(call)
        self._watched.interrupt()

    def finish(self) -> None:
        """See to those that are gone by now, and end."""
        self._leaving = True
        self._watched.interrupt()
        self._thread.join(LAST_WORDS)

    def _run(self) -> None:
        leaving = False
        while not leaving:
            leaving = self._leaving  # once more after that
            for pid in self._watched.wait(0 if leaving else None):
                gone = self._gone.pop(pid, None)
                if gone is not None:
                    _safely(gone)
            while not self._calls.empty():
                _safely(self._calls.get())


def _safely(call: Call) -> None:
    try:
        call()
    except Exception:  # the others need this thread
        logger.exception("what a child of this worker held may be held until its lease ends")


def soon(call: Call) -> None:
    """Call it in the watching thread, so that the worker's loop goes on; here, if there is none."""
    if Children.here is None:
        call()
    else:
        Children.here.call(call)


class WatchChildren(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts when the pool has forked, and ends after it: a shutdown kills children, too."""

    requires = frozenset({"celery.worker.components:Pool"})

    def include_if(self, parent: Any) -> bool:
        return bool(parent.pool_cls.__module__ == "celery.concurrency.prefork")

    def start(self, parent: Any) -> None:
        Children.here = Children(processes())
        Children.here.start()
        # Behind the pool's own end, which has priority 15.
        Finalize(None, Children.here.finish, exitpriority=0)

    def stop(self, parent: Any) -> None:
        """Too early: the pool ends after this."""

    terminate = stop
