"""``on_lost="abort"``: the body that lost its lease gets ``LockLost`` raised in it, once.

It strikes between any two lines of the body, and nowhere else: not while the lock is taken or given
back, and not in the next task. A locked task that the body runs eagerly is not part of it: there
Celery would take the exception for the other task's failure. The strike waits until that is over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded, TaskPredicate
from kombu.utils.compat import detect_environment

from celery_dlock.core.lease import Lease
from celery_dlock.errors import ConfigurationError, LockLost, StaleFencingToken
from celery_dlock.tasks.strikes import Call, Shield, Thrown, this_thread

T = TypeVar("T")

#: Why not under gevent and eventlet.
IN_GREENLETS = (
    'on_lost="abort" is not possible under gevent and eventlet: what interrupts a thread would '
    "strike whichever greenlet is running. Use prefork, threads or solo; or leave it at "
    '"flag", call lease.check() before each step, and fence what the body writes'
)


#: What a body ends with on purpose, even after it was struck.
MEANT = (TaskPredicate, SoftTimeLimitExceeded, LockLost, StaleFencingToken)


class Abort:
    """The means to abort one call of a body, made in the thread that will make the call.

    Raises :exc:`~celery_dlock.ConfigurationError` where greenlets stand in for threads.
    """

    __slots__ = ("_call", "_thread")

    def __init__(self) -> None:
        if detect_environment() != "default":  # type: ignore[no-untyped-call]
            raise ConfigurationError(IN_GREENLETS)
        self._call = Call()
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


def _follows(error: BaseException, call: Call) -> bool:
    """Whether *error* came up as the strike went through the body: a rollback failed, say.

    What was raised ``from`` the strike was meant. A group holds what ended several at once.
    """
    if isinstance(error, ExceptionGroup):
        return any(_is_strike(one, call) or _follows(one, call) for one in error.exceptions)
    if error.__suppress_context__:
        cause = error.__cause__
        return cause is not None and not _is_strike(cause, call) and _follows(cause, call)
    context = error.__context__
    return context is not None and (_is_strike(context, call) or _follows(context, call))


def _is_strike(error: BaseException, call: Call) -> bool:
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
