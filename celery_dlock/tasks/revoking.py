"""A revoked task that waits in the store ends at once, and not when its turn comes.

Celery keeps what was revoked in the memory of the workers, and forgets it. Each worker therefore
looks for those ids among the messages that wait, soon after it has heard of them; in the store
the end is written down. It looks twice, because a task may just be on its way into the queue.
"""

from __future__ import annotations

import logging
import threading
import time
from math import inf
from typing import Any

from celery import bootsteps
from celery.worker import state

from celery_dlock.errors import BackendUnavailable
from celery_dlock.tasks.runtime import runtime

logger = logging.getLogger("celery_dlock")

#: Seconds between two looks at what this worker has heard, and before an id is looked for again.
INTERVAL = 0.5
AGAIN = 10.0


class EndRevoked(bootsteps.StartStopStep):  # type: ignore[misc]
    """One thread of the worker's main process; it asks the store only after a revocation."""

    requires = frozenset({"celery.worker.components:Pool"})

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._app = parent.app
        self._look_at: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-dlock-revoked", daemon=True)

    def start(self, parent: Any) -> None:
        self._thread.start()

    def stop(self, parent: Any) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            try:
                self._look()
            except BackendUnavailable as exc:
                logger.warning("revoked tasks that wait are not looked for: %s", exc)
            except Exception:  # a defect must not end the thread
                logger.exception("revoked tasks that wait are not looked for")

    def _look(self) -> None:
        revoked = set(state.revoked) if len(state.revoked) else set[str]()
        for forgotten in self._look_at.keys() - revoked:
            del self._look_at[forgotten]
        now = time.monotonic()
        due = {task_id for task_id in revoked if now >= self._look_at.get(task_id, now)}
        if due:
            self._end(due)
        for task_id in due:
            self._look_at[task_id] = inf if task_id in self._look_at else now + AGAIN

    def _end(self, task_ids: set[str]) -> None:
        here = runtime(self._app)
        for key, task in here.backend.parked(task_ids):
            here.wake(here.backend.cancel(key, task).wakes)
