"""Releases that the store did not answer are retried in the background, until it has heard.

The lease ends by itself. But a task whose end the store does not know may be woken again from its
queue, or by a copy in the broker, although its result stands; and calls of a unique task would be
answered with one that is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from celery_dlock.core.lease import Monotonic
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.throttled_warning import ThrottledWarning
from celery_dlock.stores.base import InUse

logger = logging.getLogger("celery_dlock")

#: Seconds between two tries, the first and the longest, which is how long calls may be answered
#: with a task that is over when the store is back; and for how long it is tried.
FIRST_PAUSE, LONGEST_PAUSE, GIVE_UP_AFTER = 0.5, 5.0, 600.0

#: Raises :exc:`~celery_dlock.BackendUnavailable` when the store has not heard it.
Release = Callable[[], object]


class PendingReleases:
    """One thread, while there is something to retry; it ends with the process.

    Whose process ends waits for it to :meth:`finish`. *wait* waits for the event, or so many
    seconds.
    """

    def __init__(
        self,
        monotonic: Monotonic = time.monotonic,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._monotonic = monotonic
        self._wait = wait
        self._warning = ThrottledWarning(monotonic)
        self._mutex = threading.Lock()
        self._pending: deque[tuple[str, Release, float, str]] = deque()
        self._hurries = False
        self._stirred = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def retry(self, what: str, release: Release, key: str = "") -> None:
        """Tell the store soon, by *release*, what has ended; it may be a hold of *key*."""
        with self._mutex:
            if self._closed:
                _give_up(what)
                return
            self._pending.append((what, release, self._monotonic() + GIVE_UP_AFTER, key))
            if len(self._pending) == 1:
                self._thread = threading.Thread(
                    target=self._run, name="celery-dlock-releases", daemon=True
                )
                self._thread.start()

    def hurry(self, key: str) -> bool:
        """Tell the store at once that *key* is released; whether there was such a thing.

        It is told again in its turn, which does no harm.
        """
        releases = [release for _, release, _, held in tuple(self._pending) if held == key]
        for release in releases:
            with suppress(BackendUnavailable):
                release()
        return bool(releases)

    def finish(self, within: float) -> None:
        """Wait until none is pending, for so many seconds at most: the process ends."""
        thread, pending = self._thread, tuple(self._pending)
        if thread is None or not pending:
            return
        for what, *_ in pending:
            logger.warning(
                "%s, and the lock store does not know it yet: waiting up to %g s for the store",
                what,
                within,
            )
        self._hurries = True
        self._stirred.set()
        thread.join(within)
        for what, *_ in tuple(self._pending):
            _give_up(what)

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
            what, release, until, _ = self._pending[0]
            error = self._try(what, release)
            pause = 0.0 if error is None else self._pause_after(error, pause)
            if pause and not closed and self._monotonic() < until:
                if isinstance(error, InUse):  # which says nothing of the others
                    with self._mutex:
                        self._pending.rotate(-1)
                continue
            with self._mutex:
                count = len(self._pending) if pause and closed else 1
                over = [self._pending.popleft() for _ in range(count)]
                ends = not self._pending
            if pause:
                for what, *_ in over:
                    _give_up(what)
            if ends:
                return

    def _pause_after(self, error: BackendUnavailable, pause: float) -> float:
        is_short = self._hurries or isinstance(error, InUse)
        return min(max(2 * pause, FIRST_PAUSE), FIRST_PAUSE if is_short else LONGEST_PAUSE)

    def _try(self, what: str, release: Release) -> BackendUnavailable | None:
        """Why it has to be tried again, if so."""
        try:
            release()
        except BackendUnavailable as exc:
            self._warning.warn("the lock store has not heard what has ended, trying again: %s", exc)
            return exc
        except Exception:  # a defect must not end the thread that retries the others
            logger.exception("the lock store could not be told that %s", what)
        self._warning.resolved("the lock store has heard what has ended")
        return None


def _give_up(what: str) -> None:
    logger.error("gave up telling the lock store that %s", what)
