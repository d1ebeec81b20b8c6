"""The leader's clock, as far as it can be told from the instants that it writes into nodes."""

from __future__ import annotations

import time

from celery_dlock.core.lease import CLOCK

#: Microseconds in the unit of ZooKeeper's instants.
UNIT = 1000


def here() -> int:
    """Microseconds since some instant, on this host's clock."""
    return time.clock_gettime_ns(CLOCK) // 1000


class ServerClock:
    """It is this host's wall clock until it has heard of the other."""

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1000 - here()
        self.heard_of = False

    def now(self) -> int:
        return here() + self._offset

    def heard(self, sent: int, written: int, received: int) -> None:
        """An instant *written* there, in milliseconds, lay between *sent* and *received* here.

        The offset changes no more than it must, so that it does not shake with each answer.
        """
        at = written * UNIT
        least, most = at - received, at + UNIT - sent
        self._offset = min(max(self._offset, least), most)
        self.heard_of = True
