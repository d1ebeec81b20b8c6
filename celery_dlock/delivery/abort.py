"""``on_lost="abort"``: the body that lost its lease gets ``LockLost`` raised in it, once.

It strikes between any two lines of the body, and nowhere else: not while the lock is taken or given
back, and not in the next task. A locked task that the body runs eagerly is not part of it: there
Celery would take the exception for the other task's failure. The strike waits until that is over.

How an exception gets into a call that runs already, and only into that call:

1. The thread notes what it is at: an ``AbortableCall`` is put on top when a body begins, a
   ``Shield`` when something begins that must not be struck, and each is taken off when it is over.
2. Whoever learns of the loss writes it on the ``AbortableCall``. The main thread is sent a signal,
   whose handler raises: nothing else ends a blocking system call. Any other thread gets an
   asynchronous exception, which strikes at its next line of Python: signal handlers run in the main
   thread only.
3. Before it strikes, the stack is looked at. The body has to be waiting for what runs there, which
   another greenlet of the same thread is not, and nothing in between may be of the kind that would
   swallow the exception or be broken by it.
4. It is repeated until it has struck or the body is over: it may have come where the thread is
   spared, or just before a system call began. What came where the interpreter drops exceptions, as
   in the callback of a weak reference, has not struck either.
5. Whenever something is put on top or taken off, what was sent and has not struck is taken back,
   and what could not strike before does so now. What comes too late strikes nobody.

The signal is ``SIGURG`` because nobody else uses it here (billiard has ``SIGUSR1``, Celery's
debugger ``SIGUSR2``), and because a process without a handler ignores it: one that comes late kills
nobody. The Go runtime interrupts its threads by it for the same reasons. Why all this, and not a
soft time limit: ``docs/decisions/0013-an-abort-strikes-the-body-only.rst``.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain, repeat
from types import FrameType
from typing import Any, NoReturn, TypeVar

from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded, TaskPredicate
from kombu.utils.compat import detect_environment

from celery_dlock.core.lease import Lease
from celery_dlock.errors import ConfigurationError, LockLost, StaleFencingToken

T = TypeVar("T")

#: Why not under gevent and eventlet.
IN_GREENLETS = (
    'on_lost="abort" is not possible under gevent and eventlet: what interrupts a thread would '
    "hit whichever greenlet is running. Use prefork, threads or solo; or leave it at "
    '"flag", call lease.check() before each step, and fence what the body writes'
)


#: What a body ends with on purpose, even after it was struck.
MEANT = (TaskPredicate, SoftTimeLimitExceeded, LockLost, StaleFencingToken)

SIGNAL = signal.SIGURG

#: Seconds until a thread is told again, should it have been about to enter a system call, or have
#: been where it is spared.
ABORT_RETRY_INTERVAL = 0.1

#: Code that is not struck. Logging, and what tells the sinks of an event, would swallow the
#: exception, or keep a lock that others need. Django, on the way into or out of ``atomic()``, would
#: take each later transaction of the process for a part of one that never ends. A ``WeakSet`` whose
#: callback was broken off would keep what is gone.
SPARED = frozenset(
    {"logging", "celery_dlock.core.sinks", "django.db.transaction", "_weakrefset", "weakref"}
)


class Abort:
    """The means to abort one call of a body, made in the thread that will make the call.

    Raises :exc:`~celery_dlock.ConfigurationError` where greenlets stand in for threads.
    """

    __slots__ = ("_call", "_thread")

    def __init__(self) -> None:
        if detect_environment() != "default":  # type: ignore[no-untyped-call]
            raise ConfigurationError(IN_GREENLETS)
        self._call = AbortableCall()
        _repeat_what_is_dropped()
        self._thread = this_thread()
        self._thread.prepare()

    def strike(self, key: str, reason: str) -> None:
        """The lease is lost: from any thread, before, during or after the call."""
        if not self._call.lost:
            self._call.lost = (key, reason)
            self._thread.tell(self._call)

    def run(self, lease: Lease, body: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call *body* under *lease*; it ends with :exc:`LockLost` as soon as that is lost.

        Also when another error comes up on its way out, unless that was raised on purpose.
        """
        call, thread = self._call, self._thread
        for term in lease.terms:
            if term.lost:
                self.strike(term.key, term.lost)
        call.below, call.frame = thread.top, inspect.currentframe()
        __tracebackhide__ = True
        try:
            try:
                thread.move(call)
                return body(*args, **kwargs)
            finally:
                thread.move(call.below)
        except BaseException as exc:
            # It may have struck while it was about to be called off; there is no second one.
            thread.move(call.below)
            if isinstance(exc, Thrown) and exc.call is call:
                raise LockLost(exc.key, exc.reason).with_traceback(exc.__traceback__) from None
            if isinstance(exc, Exception) and not isinstance(exc, MEANT) and _follows(exc, call):
                raise LockLost(*call.lost) from exc
            raise
        finally:
            call.frame = None


def _follows(error: BaseException, call: AbortableCall) -> bool:
    """Whether *error* came up as the strike went through the body: a rollback failed, say.

    What was raised ``from`` the strike was meant. A group holds what ended several at once.
    """
    if isinstance(error, ExceptionGroup):
        return any(
            _is_strike(member, call) or _follows(member, call) for member in error.exceptions
        )
    if error.__suppress_context__:
        cause = error.__cause__
        return cause is not None and not _is_strike(cause, call) and _follows(cause, call)
    context = error.__context__
    return context is not None and (_is_strike(context, call) or _follows(context, call))


def _is_strike(error: BaseException, call: AbortableCall) -> bool:
    return isinstance(error, LockLost) and error.args == call.lost


def shielded(call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call what must not be struck for the loss of a lease that this thread took before.

    Raises :exc:`LockLost` when it is over, if there was such a loss.
    """
    thread = this_thread()
    shield = Shield(thread.top)
    try:
        thread.move(shield)
        return call(*args, **kwargs)
    finally:
        thread.move(shield.below)


def handing_on(call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call what publishes the running task anew; after that its body is not struck any more.

    It would run again beside what it has published, and halfway Celery would reject the message.
    Where nothing was published it is struck as soon as that is over.
    """
    thread = this_thread()
    below = thread.top
    if below is None:
        return call(*args, **kwargs)
    thread.move(Shield(below))  # which goes when the body does
    try:
        return call(*args, **kwargs)
    except (Retry, Ignore):
        raise
    except BaseException:
        thread.move(below)
        raise


# The calls of a thread, and how they are struck.


@dataclass(slots=True, eq=False)
class Shield:
    """While it is on top, no call below it is struck."""

    below: AbortableCall | Shield | None


@dataclass(slots=True, eq=False)
class AbortableCall:
    """A call that is struck once, if at all: when it has *lost* a key, for some reason."""

    below: AbortableCall | Shield | None = None
    frame: FrameType | None = None
    lost: tuple[str, str] | tuple[()] = ()
    struck: bool = False

    def strike(self) -> NoReturn:
        self.struck = True
        raise LockLost(*self.lost)


@dataclass(slots=True, eq=False)
class Thread:
    """The calls and shields of one thread: the innermost one is on *top*."""

    top: AbortableCall | Shield | None = None
    ident: int = field(default_factory=threading.get_ident)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self) -> None:
        """Called by the thread itself, before its first call."""

    def due(self) -> AbortableCall | None:
        """The innermost call that is to be struck now."""
        return next((call for call in self._calls() if call.lost and not call.struck), None)

    def struck_by(self, error: BaseException | None) -> AbortableCall | None:
        """The call that *error* was to end, if it was a strike."""
        if not isinstance(error, LockLost):
            return None
        calls = self._calls()
        return next((call for call in calls if call.struck and _is_strike(error, call)), None)

    def _calls(self) -> Iterator[AbortableCall]:
        entry = self.top
        while isinstance(entry, AbortableCall):
            yield entry
            entry = entry.below

    def move(self, top: AbortableCall | Shield | None) -> None:
        """Enter *top*, or go back to it. Raises what could not strike before."""
        with self.mutex:
            self.take_back()
            self.top = top
            call = self.due()
            if call is not None:
                call.strike()

    def take_back(self) -> None:
        """Cancel the exception that was sent and has not struck yet."""

    def tell(self, call: AbortableCall) -> None:
        """Strike *call*, which has lost its key now; called by another thread."""
        if call.frame is not None:
            self.send()
            insist = threading.Thread(target=self._insist, args=(call,), name="celery-dlock-abort")
            insist.daemon = True
            insist.start()

    def _insist(self, call: AbortableCall) -> None:
        while call.frame is not None:
            time.sleep(ABORT_RETRY_INTERVAL)
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
        elif _is_open(_stack(frame), call.frame):
            call.strike()


def _is_open(stack: Iterable[object], caller: FrameType | None) -> bool:
    """Whether *caller* waits for the first frame of *stack*, and not for anything that is spared.

    Another greenlet of the same thread does not wait for it.
    """
    for frame in stack:
        if not isinstance(frame, FrameType) or _is_spared(frame):
            return False  # it is asked again
        if frame is caller:
            return True
    return False


def _is_spared(frame: FrameType) -> bool:
    finalizes = frame.f_code.co_name == "__del__"  # whose errors are dropped, too
    return finalizes or frame.f_globals.get("__name__") in SPARED


@cache
def _repeat_what_is_dropped() -> None:
    """Where the interpreter would only print it, the strike has not ended the body."""
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs, /) -> None:
        call = this_thread().struck_by(dropped.exc_value)
        if call is None:
            before(dropped)
        else:
            call.struck = False

    sys.unraisablehook = hook


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of this thread, from *frame* on outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _stack_of(ident: int) -> list[object]:
    """The frames of another thread, the innermost first, as they are at one instant.

    They are collected in one call of C, as ``while frame: frame = frame.f_back`` would. Between two
    lines of Python the other thread would run, and what leads outwards from a frame that it has
    left in the meantime is not its stack, and need not even be a frame.

    Nothing is collected meanwhile: where that frees a ``threading.local``, a Python without the
    mending of https://github.com/python/cpython/issues/106883 waits for itself, as 3.11.7 does.
    """
    all_threads = sys._current_frames  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    innermost = map(operator.itemgetter(ident), map(operator.call, [all_threads]))
    frames: Iterator[object] = accumulate(chain(innermost, repeat("f_back")), getattr)
    collects = gc.isenabled()
    gc.disable()
    try:
        return list(iter(frames.__next__, None))
    except KeyError:  # the thread has ended
        return []
    finally:
        if collects:
            gc.enable()


class Thrown(LockLost):
    """What an asynchronous exception is: a class, of which the interpreter makes one."""

    thread: OtherThread
    call: AbortableCall

    def __init__(self) -> None:
        self.thread.sent = False
        self.call.struck = True
        super().__init__(*self.call.lost)


class OtherThread(Thread):
    """Struck by an asynchronous exception."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        super().__init__()
        self.sent = False

    def send(self) -> None:
        with self.mutex:
            due = None if self.sent else self.due()
            if due and _is_open(_stack_of(self.ident), due.frame):
                self.sent = True
                _throw(self.ident, type("LockLost", (Thrown,), {"thread": self, "call": due}))

    def take_back(self) -> None:
        if self.sent:
            _throw(self.ident, None)
            self.sent = False


def _throw(ident: int, error: type[BaseException] | None) -> None:
    thrown = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), thrown)


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
