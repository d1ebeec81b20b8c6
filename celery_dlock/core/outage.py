"""A trouble that lasts is said when it begins, then rarely, and once more when it is over.

What is tried each second would fill a log with it otherwise.
"""

from __future__ import annotations

import logging
import math
import time

from celery_dlock.core.lease import Monotonic

logger = logging.getLogger("celery_dlock")

#: Seconds after which it is said again.
RARELY = 300.0


class Outage:
    """One trouble; what is said of it may differ from one time to the next."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = self._silent_until = -math.inf

    def lasts(self, message: str, *args: object) -> None:
        """It is there, or still is: a warning, unless it was said not long ago."""
        now = self._monotonic()
        if math.isinf(self._began):
            self._began = now
        if now >= self._silent_until:
            self._silent_until = now + RARELY
            logger.warning(message, *args)

    def over(self, message: str) -> None:
        """It is not there, or no more: a warning as well, with the seconds that it lasted."""
        if not math.isinf(self._began):
            logger.warning("%s, after %.0f s", message, self._monotonic() - self._began)
            self._began = self._silent_until = -math.inf
