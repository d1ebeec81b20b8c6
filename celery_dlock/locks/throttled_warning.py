"""Warns of a trouble that lasts: when it begins, then rarely, and once more when it is over.

What is tried each second would fill a log with it otherwise. All children of a worker have the same
trouble, so they leave it to their main process to say so.
"""

from __future__ import annotations

import logging
import math
import os
import time

from celery_dlock.core.lease import Monotonic

logger = logging.getLogger("celery_dlock")

#: Seconds after which the warning is repeated.
REPEAT_AFTER = 300.0


class _Spokesman:
    """The process that warns for those, too, that it has forked; each for itself where it is 0."""

    pid = 0


def speak_for_children() -> None:
    """From now on this process warns, and what it forks does not."""
    _Spokesman.pid = os.getpid()


class ThrottledWarning:
    """One trouble; the text of the warning may differ from one time to the next.

    Of one that is a child's *own* the main process knows nothing: then the child warns.
    """

    def __init__(self, monotonic: Monotonic = time.monotonic, *, own: bool = False) -> None:
        self._monotonic = monotonic
        self._own = own
        self._began = self._silent_until = -math.inf

    def warn(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """It is there, or still is: a warning, unless there was one not long ago."""
        now = self._monotonic()
        if math.isinf(self._began):
            self._began = now
        if now >= self._silent_until:
            self._silent_until = now + REPEAT_AFTER
            logger.log(self._level(), message, *args, exc_info=exc_info)

    def resolved(self, message: str) -> None:
        """It is not there, or no more: a warning as well, with the seconds that it lasted."""
        if not math.isinf(self._began):
            lasted = self._monotonic() - self._began
            logger.log(self._level(), "%s, after %.0f s", message, lasted)
            self._began = self._silent_until = -math.inf

    def _level(self) -> int:
        speaks = self._own or _Spokesman.pid in (0, os.getpid())
        return logging.WARNING if speaks else logging.DEBUG
