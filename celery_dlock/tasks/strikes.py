"""How an exception gets into a call that runs already, and only into that call.

The main thread is sent a signal, whose handler raises; that ends a blocking system call, too. Any
other thread gets an asynchronous exception, which strikes at its next line of Python. Both are
held back while something is shielded, and taken back when the call is over.

``SIGURG`` because nobody else uses it here (billiard has ``SIGUSR1``, Celery's debugger
``SIGUSR2``), and because a process without a handler ignores it: one that comes late kills nobody.
The Go runtime interrupts its threads by it for the same reasons.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from celery_dlock.errors import LockLost

SIGNAL = signal.SIGURG

#: Seconds until a thread is told again, should it have been about to enter a system call, or have
#: been where it is spared.
AGAIN = 0.1

#: Code that is not struck. Logging, and what tells the sinks of an event, would swallow the
#: exception, or keep a lock that others need. Django, on the way into or out of ``atomic()``, would
#: take each later transaction of the process for a part of one that never ends. What the callback
#: of a weak reference raises, as in a ``WeakSet``, the interpreter prints and drops.
SPARED = frozenset(
    {"logging", "celery_dlock.core.events", "django.db.transaction", "_weakrefset", "weakref"}
)


@dataclass(slots=True, eq=False)
class Shield:
    """As long as it is on top, nothing strikes what lies below."""

    below: Call | Shield | None


@dataclass(slots=True, eq=False)
class Call:
    """A call that is struck once, if at all: when it has *lost* a key, for some reason."""

    below: Call | Shield | None = None
    frame: FrameType | None = None
    lost: tuple[str, str] | tuple[()] = ()
    struck: bool = False

    def strike(self) -> NoReturn:
        self.struck = True
        raise LockLost(*self.lost)


@dataclass(slots=True, eq=False)
class Thread:
    """What one thread is at: the innermost call or shield is on *top*."""

    top: Call | Shield | None = None
    ident: int = field(default_factory=threading.get_ident)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self) -> None:
        """Called by the thread itself, before its first call."""

    def due(self) -> Call | None:
        """The innermost call that is to be struck now."""
        entry = self.top
        while isinstance(entry, Call):
            if entry.lost and not entry.struck:
                return entry
            entry = entry.below
        return None

    def move(self, top: Call | Shield | None) -> None:
        """Enter *top*, or go back to it. Raises what could not strike before."""
        with self.mutex:
            self.take_back()
            self.top = top
            call = self.due()
            if call is not None:
                call.strike()

    def take_back(self) -> None:
        """What was sent and has not struck yet never will."""

    def tell(self, call: Call) -> None:
        """Strike *call*, which has lost its key now; called by another thread."""
        if call.frame is not None:
            self.send()
            insist = threading.Thread(target=self._insist, args=(call,), name="celery-dlock-abort")
            insist.daemon = True
            insist.start()

    def _insist(self, call: Call) -> None:
        while call.frame is not None and not call.struck:
            time.sleep(AGAIN)
            if self.due() is not None:
                self.send()

    def send(self) -> None:
        """Strike what is due, if that may be struck where it is now."""
        raise NotImplementedError


class MainThread(Thread):
    """Struck by a signal."""

    __slots__ = ("_before", "_installed")

    def __init__(self) -> None:
        super().__init__()
        self._installed = False
        self._before: object = None

    def prepare(self) -> None:
        if not self._installed:
            self._before = signal.signal(SIGNAL, self._strike)
            self._installed = True

    def send(self) -> None:
        signal.pthread_kill(self.ident, SIGNAL)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        call = self.due()
        if call is None:
            if callable(self._before):
                self._before(number, frame)
        elif _is_open(frame, call.frame):
            call.strike()


def _is_open(frame: FrameType | None, caller: FrameType | None) -> bool:
    """Whether *caller* waits for *frame*, and not for anything that is spared.

    Another greenlet of the same thread does not wait for it.
    """
    while frame is not None and not _is_spared(frame):
        if frame is caller:
            return True
        frame = frame.f_back
    return False


def _is_spared(frame: FrameType) -> bool:
    finalizes = frame.f_code.co_name == "__del__"  # whose errors are dropped, too
    return finalizes or frame.f_globals.get("__name__") in SPARED


class Thrown(LockLost):
    """What an asynchronous exception is: a class, of which the interpreter makes one."""

    call: Call

    def __init__(self) -> None:
        self.call.struck = True
        super().__init__(*self.call.lost)


class OtherThread(Thread):
    """Struck by an asynchronous exception."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        super().__init__()
        self._sent: Call | None = None

    def send(self) -> None:
        with self.mutex:
            under_way = self._sent is not None and not self._sent.struck
            due = None if under_way else self.due()
            if due and _is_open(_frame_of(self.ident), due.frame):
                self._sent = due
                _throw(self.ident, type("LockLost", (Thrown,), {"call": due}))

    def take_back(self) -> None:
        if self._sent is not None and not self._sent.struck:
            _throw(self.ident, None)
        self._sent = None


def _frame_of(ident: int) -> FrameType | None:
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return frames.get(ident)


def _throw(ident: int, error: type[BaseException] | None) -> None:
    what = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), what)


class _Local(threading.local):
    def __init__(self) -> None:
        main = threading.get_ident() == threading.main_thread().ident
        self.thread: Thread = MainThread() if main else OtherThread()


_local = _Local()


def this_thread() -> Thread:
    return _local.thread


def _after_fork_in_child() -> None:
    """Another thread may have held the mutex, and here nobody would free it."""
    _local.thread.mutex = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
