"""In every worker: calls again who did not answer, and who waits behind a holder that died.

There is no leader. Each worker asks the store for what is due, publishes it, and sleeps until the
next due instant, or for a few seconds: a message that another worker parks meanwhile may be due
before.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import bootsteps

from celery_dlock.errors import BackendUnavailable
from celery_dlock.tasks.runtime import runtime

logger = logging.getLogger("celery_dlock")

#: Seconds; a call is repeated no earlier than after this time anyway.
LONGEST_SLEEP = 5.0


class Sweeper(bootsteps.StartStopStep):  # type: ignore[misc]
    """One thread of the worker's main process, started after the pool has forked."""

    requires = frozenset({"celery.worker.components:Pool"})

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._app = parent.app
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-dlock-sweeper", daemon=True)

    def start(self, parent: Any) -> None:
        self._thread.start()

    def stop(self, parent: Any) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._stopped.wait(self._sweep())

    def _sweep(self) -> float:
        """Sweep once; seconds until the next time."""
        here = runtime(self._app)
        try:
            swept = here.backend.sweep()
        except BackendUnavailable as exc:
            logger.warning("nothing was swept: %s", exc)
            return LONGEST_SLEEP
        except Exception:  # a defect must not end the thread that wakes the forgotten
            logger.exception("nothing was swept")
            return LONGEST_SLEEP
        ours = here.wake(swept.wakes)
        if swept.next_in is None or (swept.wakes and not ours):
            return LONGEST_SLEEP  # what was handed back is for another worker to find
        return min(swept.next_in, LONGEST_SLEEP)
