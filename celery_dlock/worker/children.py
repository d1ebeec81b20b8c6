"""The main process of a prefork worker watches its children, and acts when one is gone.

A child that is killed cannot release what it holds, and nobody renews it any more. The main
process knows what the child was at, because it sent it there. It waits for the end of the process
itself: Celery announces a revocation or a time limit while the body may still be writing.

All that follows from a death happens in one thread, so that the store may be slow without the
worker's loop noticing. Linux tells it of a death at once, through a descriptor for each process;
elsewhere they are asked, a few times a second.

A worker or a child of it that ends waits until the store has heard what else has ended there. A
thread says it again while the process lives. A child that is recycled, or told to end by a warm
shutdown, would take that along: a finished task whose message the store keeps would run again.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol

from celery import bootsteps, signals

from celery_dlock.runtime import finish
from celery_dlock.worker.guard import Guard

logger = logging.getLogger("celery_dlock")

#: Seconds that the end of the worker waits for what its children have left behind.
LEFT_BEHIND = 5.0

#: Seconds that the end of a process waits for the store to hear it: enough for one that restarts or
#: fails over, and less than the half minute after which whoever supervises a worker usually kills.
LAST_WORDS = 20.0

#: Seconds between two rounds of asking, where the kernel does not tell.
ASK_EVERY = 0.2

Call = Callable[[], object]


class Children:
    """The calls that follow the end of a child, and the thread that makes them.

    No lock: Celery shuts down inside a signal handler, which may interrupt any line here.
    """

    #: Those of this worker; ``None`` where its bodies run in no processes of their own.
    current: ClassVar[Children | None] = None

    def __init__(self, watched: ProcessWatcher) -> None:
        self._watched = watched
        self._on_exit: dict[int, Call] = {}
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="celery-dlock-children", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, pid: int, on_exit: Call) -> None:
        """Call *on_exit* after the end of *pid*, in place of an earlier one."""
        self._on_exit[pid] = on_exit  # first: the thread may just be taking the one before
        try:
            self._watched.watch(pid)
        except OSError as exc:
            logger.warning(
                "cannot watch the child %d: if it dies, its keys are held until their leases "
                "expire: %s",
                pid,
                exc,
            )

    def call(self, call: Call) -> None:
        """Have the thread call it, soon."""
        self._calls.put(call)
        self._watched.interrupt()

    def finish(self) -> None:
        """Make the calls for those that have ended by now, and end the thread."""
        self._leaving = True
        self._watched.interrupt()
        self._thread.join(LEFT_BEHIND)

    def _run(self) -> None:
        leaving = False
        while not leaving:
            leaving = self._leaving  # once more after that
            for pid in self._watched.wait(0 if leaving else None):
                on_exit = self._on_exit.pop(pid, None)
                if on_exit is not None:
                    _safely(on_exit)
            while not self._calls.empty():
                _safely(self._calls.get())


_RELEASE_GUARD = Guard(
    "keys of a task whose process has ended may be held until their leases expire"
)


def _safely(call: Call) -> None:
    with _RELEASE_GUARD:
        call()


def soon(call: Call) -> None:
    """Call it in the watching thread, so that the worker's loop goes on; here, if there is none."""
    if Children.current is None:
        _safely(call)
    else:
        Children.current.call(call)


class WatchChildren(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts when the pool has forked, and ends after it: a shutdown kills children, too."""

    requires = frozenset({"celery.worker.components:Pool"})

    def include_if(self, parent: Any) -> bool:
        return bool(parent.pool_cls.__module__ == "celery.concurrency.prefork")

    def start(self, parent: Any) -> None:
        Children.current = Children(processes())
        Children.current.start()
        # Behind the pool's own end, which has priority 15.
        Finalize(None, Children.current.finish, exitpriority=0)
        Finalize(None, have_the_last_word, exitpriority=-1)

    def stop(self, parent: Any) -> None:
        """Too early: the pool ends after this."""

    terminate = stop


class ProcessWatcher(Protocol):
    """What one thread waits for, and any other adds to."""

    def watch(self, pid: int) -> None:
        """Watch *pid*; the next wait returns one that has ended already."""
        ...

    def wait(self, seconds: float | None = None) -> list[int]:
        """Those that have ended, each once; it may return none, or before the time."""
        ...

    def interrupt(self) -> None:
        """Let the running wait, or the next one, return soon."""
        ...


class PidfdWatcher:
    """The kernel tells. Raises :exc:`OSError` where it is too old for that (Linux before 5.3)."""

    def __init__(self) -> None:
        os.close(os.pidfd_open(os.getpid()))
        self._epoll = select.epoll()
        self._interrupts = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._interrupts, select.EPOLLIN)
        self._descriptors: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._gone_before: deque[int] = deque()

    def watch(self, pid: int) -> None:
        if pid in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone_before.append(pid)
            self.interrupt()
            return
        self._descriptors[pid] = descriptor
        self._pids[descriptor] = pid
        self._epoll.register(descriptor, select.EPOLLIN)

    def wait(self, seconds: float | None = None) -> list[int]:
        ended = []
        for descriptor, _ in self._epoll.poll(seconds):
            if descriptor == self._interrupts:
                os.eventfd_read(descriptor)
                continue
            pid = self._pids.pop(descriptor)
            del self._descriptors[pid]
            # Closing is not enough: children that were forked meanwhile have it open, too.
            self._epoll.unregister(descriptor)
            os.close(descriptor)
            ended.append(pid)
        while self._gone_before:
            ended.append(self._gone_before.popleft())
        return ended

    def interrupt(self) -> None:
        os.eventfd_write(self._interrupts, 1)


class PollingWatcher:
    """Asks again and again."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def watch(self, pid: int) -> None:
        self._pids.add(pid)

    def wait(self, seconds: float | None = None) -> list[int]:
        time.sleep(ASK_EVERY if seconds is None else min(seconds, ASK_EVERY))
        ended = [pid for pid in tuple(self._pids) if _has_ended(pid) or not _exists(pid)]
        self._pids.difference_update(ended)
        return ended

    def interrupt(self) -> None:
        """It never waits for long."""


def _has_ended(pid: int) -> bool:
    """Whether it is a child that waits to be reaped, which Celery may do some seconds later."""
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def processes() -> ProcessWatcher:
    """The best watcher that this system has."""
    try:
        return PidfdWatcher()
    except (AttributeError, OSError):
        return PollingWatcher()


def have_the_last_word(**_: Any) -> None:
    """Wait until the store has heard what has ended in this process."""
    finish(LAST_WORDS)


signals.worker_process_shutdown.connect(have_the_last_word)
signals.worker_shutdown.connect(have_the_last_word)  # its pool has ended
