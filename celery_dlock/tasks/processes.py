"""Which of the processes that were started here are gone.

Gone is more than told to go: until then a body may still write. Linux tells it at once, through a
descriptor for each process; elsewhere they are asked, a few times a second.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import Protocol

#: Seconds between two rounds of asking, where the kernel does not tell.
ASK_EVERY = 0.2


class Processes(Protocol):
    """What one thread waits for, and any other adds to."""

    def watch(self, pid: int) -> None:
        """From now on *pid* counts; a process that is gone already is told by the next wait."""
        ...

    def wait(self, seconds: float | None = None) -> list[int]:
        """Those that are gone, each once; it may return without any, or before the time."""
        ...

    def interrupt(self) -> None:
        """Let the running wait, or the next one, return soon."""
        ...


class Told:
    """By the kernel. Raises :exc:`OSError` where it is too old for that (Linux before 5.3)."""

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
        gone = []
        for descriptor, _ in self._epoll.poll(seconds):
            if descriptor == self._interrupts:
                os.eventfd_read(descriptor)
                continue
            pid = self._pids.pop(descriptor)
            del self._descriptors[pid]
            # Closing is not enough: children that were forked meanwhile have it open, too.
            self._epoll.unregister(descriptor)
            os.close(descriptor)
            gone.append(pid)
        while self._gone_before:
            gone.append(self._gone_before.popleft())
        return gone

    def interrupt(self) -> None:
        os.eventfd_write(self._interrupts, 1)


class Asked:
    """By asking again and again."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def watch(self, pid: int) -> None:
        self._pids.add(pid)

    def wait(self, seconds: float | None = None) -> list[int]:
        time.sleep(ASK_EVERY if seconds is None else min(seconds, ASK_EVERY))
        gone = [pid for pid in tuple(self._pids) if _has_ended(pid) or not _exists(pid)]
        self._pids.difference_update(gone)
        return gone

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


def processes() -> Processes:
    """The better one of what this system has."""
    try:
        return Told()
    except (AttributeError, OSError):
        return Asked()
