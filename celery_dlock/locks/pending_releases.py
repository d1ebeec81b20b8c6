"""Releases that the store did not answer are retried in the background, until it has heard.

The lease ends by itself. But a task whose end the store does not know may be woken again from its
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
from celery_dlock.locks.throttled_warning import ThrottledWarning

logger = logging.getLogger("celery_dlock")

#: Seconds between two tries, the first and the longest; and for how long it is tried.
FIRST_PAUSE, LONGEST_PAUSE, GIVE_UP_AFTER = 0.5, 15.0, 600.0

Release = Callable[[Claim, Outcome], object]


class PendingReleases:
    """One thread, while there is something to retry; it ends with the process.

    Whose process ends waits for it to :meth:`finish`. *wait* waits for the event, or so many
    seconds.
    """

    def __init__(
        self,
        release: Release,
        monotonic: Monotonic = time.monotonic,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._release = release
        self._monotonic = monotonic
        self._wait = wait
        self._warning = ThrottledWarning(monotonic)
        self._mutex = threading.Lock()
        self._pending: deque[tuple[Claim, Outcome, float]] = deque()
        self._hurries = False
        self._stirred = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def retry(self, claim: Claim, outcome: Outcome) -> None:
        """Tell the store soon that *claim* has left."""
        with self._mutex:
            if self._closed:
                _give_up(claim, outcome)
                return
            self._pending.append((claim, outcome, self._monotonic() + GIVE_UP_AFTER))
            if len(self._pending) == 1:
                self._thread = threading.Thread(
                    target=self._run, name="celery-dlock-releases", daemon=True
                )
                self._thread.start()

    def finish(self, within: float) -> None:
        """Wait until none is pending, for so many seconds at most: the process ends."""
        thread, pending = self._thread, tuple(self._pending)
        if thread is None or not pending:
            return
        for claim, outcome, _ in pending:
            logger.warning(
                "%s is %s, and the lock store does not know it yet: waiting up to %g s for the "
                "store",
                claim.task,
                outcome,
                within,
            )
        self._hurries = True
        self._stirred.set()
        thread.join(within)
        for claim, outcome, _ in tuple(self._pending):
            _give_up(claim, outcome)

    def close(self) -> None:
        """Try once more what is pending; nothing is retried after this."""
        with self._mutex:
            self._closed = True
            thread = self._thread
        self._stirred.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._wait(self._stirred, pause)
            self._stirred.clear()
            closed = self._closed
            claim, outcome, until = self._pending[0]
            again = min(
                max(2 * pause, FIRST_PAUSE), FIRST_PAUSE if self._hurries else LONGEST_PAUSE
            )
            pause = 0.0 if self._try(claim, outcome) else again
            if pause and not closed and self._monotonic() < until:
                continue
            with self._mutex:
                count = len(self._pending) if pause and closed else 1
                over = [self._pending.popleft() for _ in range(count)]
                ends = not self._pending
            if pause:
                for claim, outcome, _ in over:
                    _give_up(claim, outcome)
            if ends:
                return

    def _try(self, claim: Claim, outcome: Outcome) -> bool:
        """Whether it need not be tried again."""
        try:
            self._release(claim, outcome)
        except BackendUnavailable as exc:
            self._warning.warn("a lock could not be released, trying again: %s", exc)
            return False
        except Exception:  # a defect must not end the thread that retries the others
            logger.exception("the outcome %s of %s could not be stored", outcome, claim.task)
        self._warning.resolved("locks can be released again")
        return True


def _give_up(claim: Claim, outcome: Outcome) -> None:
    logger.error("gave up telling the lock store that %s is %s", claim.task, outcome)
