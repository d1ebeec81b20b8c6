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
    """One thread, while there is something to say; it ends with the process, if it is not closed.

    *wait* waits for the event, or so many seconds; whether the event is set.
    """

    def __init__(
        self,
        say: Say,
        monotonic: Monotonic = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._say = say
        self._monotonic = monotonic
        self._wait = wait
        self._mutex = threading.Lock()
        self._unsaid: deque[tuple[Claim, Outcome, float]] = deque()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self, claim: Claim, outcome: Outcome) -> None:
        """Say that *claim* has left, soon."""
        with self._mutex:
            if self._closed.is_set():
                _give_up(claim, outcome)
                return
            self._unsaid.append((claim, outcome, self._monotonic() + ENOUGH))
            if len(self._unsaid) == 1:
                self._thread = threading.Thread(
                    target=self._run, name="celery-dlock-later", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Try once more what is unsaid; nothing is said after this any more."""
        with self._mutex:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        pause = FIRST
        while True:
            closed = self._wait(self._closed, pause)
            claim, outcome, until = self._unsaid[0]
            pause = 0.0 if self._heard(claim, outcome) else min(max(2 * pause, FIRST), LONGEST)
            if pause and not closed and self._monotonic() < until:
                continue
            with self._mutex:
                count = len(self._unsaid) if pause and closed else 1
                over = [self._unsaid.popleft() for _ in range(count)]
                ends = not self._unsaid
            if pause:
                for claim, outcome, _ in over:
                    _give_up(claim, outcome)
            if ends:
                return

    def _heard(self, claim: Claim, outcome: Outcome) -> bool:
        try:
            self._say(claim, outcome)
        except BackendUnavailable:
            return False
        except Exception:  # a defect must not end the thread that speaks for the others
            logger.exception("%s could not be said of %s", outcome, claim.task)
        return True


def _give_up(claim: Claim, outcome: Outcome) -> None:
    logger.error("the lock store never heard that %s is %s", claim.task, outcome)
