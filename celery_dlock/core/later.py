"""What the store did not hear when a task left is said to it again, until it has heard.

The lease ends by itself. But a task whose end the store does not know may be called again from its
queue, or by a copy in the broker, although its result stands.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from celery_dlock.core.lease import Monotonic
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.errors import BackendUnavailable

logger = logging.getLogger("celery_dlock")

#: Seconds between two tries, the first and the longest; and for how long it is tried.
FIRST, LONGEST, ENOUGH = 0.5, 15.0, 600.0

Say = Callable[[Claim, Outcome], object]


class Later:
    """One thread, while there is something to say; it ends with the process."""

    def __init__(
        self,
        say: Say,
        monotonic: Monotonic = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._say = say
        self._monotonic = monotonic
        self._sleep = sleep
        self._mutex = threading.Lock()
        self._unsaid: deque[tuple[Claim, Outcome, float]] = deque()

    def say(self, claim: Claim, outcome: Outcome) -> None:
        """Say that *claim* has left, soon."""
        with self._mutex:
            self._unsaid.append((claim, outcome, self._monotonic() + ENOUGH))
            if len(self._unsaid) == 1:
                threading.Thread(target=self._run, name="celery-dlock-later", daemon=True).start()

    def _run(self) -> None:
        pause = FIRST
        while True:
            self._sleep(pause)
            claim, outcome, until = self._unsaid[0]
            pause = 0.0 if self._heard(claim, outcome) else min(max(2 * pause, FIRST), LONGEST)
            if pause and self._monotonic() < until:
                continue
            if pause:
                logger.error("the lock store never heard that %s is %s", claim.task, outcome)
            with self._mutex:
                self._unsaid.popleft()
                if not self._unsaid:
                    return

    def _heard(self, claim: Claim, outcome: Outcome) -> bool:
        try:
            self._say(claim, outcome)
        except BackendUnavailable:
            return False
        except Exception:  # a defect must not end the thread that speaks for the others
            logger.exception("%s could not be said of %s", outcome, claim.task)
        return True
