"""What the library adds to the worker's main loop must not end it.

Celery's loop takes an exception for a lost connection, or ends the worker; the message that raised
it comes again, to this worker or to the next. So each callback of ours runs under a guard. If it
fails, Celery goes on as it would without the library.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType

from celery_dlock.locks.throttled_warning import ThrottledWarning


class Guard(AbstractContextManager["Guard"], ContextDecorator):
    """Suppresses and logs what a block of our code raises; *instead* says what happens now.

    Not suppressed is what ends a worker (``SystemExit``, ``KeyboardInterrupt``, ``MemoryError``)
    and *errors* of the connection to the broker, after which Celery connects again.
    """

    def __init__(self, instead: str, errors: tuple[type[Exception], ...] = ()) -> None:
        self._instead = instead
        self._passes: tuple[type[Exception], ...] = (MemoryError, *errors)
        self._warning = ThrottledWarning()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passes):
            return False
        self._warning.warn("%s: %r", self._instead, error, exc_info=error)
        return True
