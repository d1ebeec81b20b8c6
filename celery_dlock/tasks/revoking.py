"""A revoked task that waits in the store ends at once, and not when its turn comes.

Celery keeps what was revoked in the memory of the workers, and forgets it. Each worker therefore
looks for those ids among the messages that wait, soon after it has heard of them; in the store
the end is written down. It looks twice, because a task may just be on its way into the queue.
"""

from __future__ import annotations

import time
from math import inf
from typing import Any

from celery.worker import state

from celery_dlock.tasks.rounds import Rounds
from celery_dlock.tasks.runtime import runtime

#: Seconds between two looks at what this worker has heard, and before an id is looked for again.
INTERVAL = 0.5
AGAIN = 10.0


class EndRevoked(Rounds):
    """It asks the store only after a revocation."""

    undone = "revoked tasks that wait are not looked for"
    pause = INTERVAL

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._look_at: dict[str, float] = {}

    def round(self) -> float:
        revoked = set(state.revoked) if len(state.revoked) else set[str]()
        for forgotten in self._look_at.keys() - revoked:
            del self._look_at[forgotten]
        now = time.monotonic()
        due = {task_id for task_id in revoked if now >= self._look_at.get(task_id, now)}
        if due:
            self._end(due)
        for task_id in due:
            self._look_at[task_id] = inf if task_id in self._look_at else now + AGAIN
        return INTERVAL

    def _end(self, task_ids: set[str]) -> None:
        here = runtime(self._app)
        for key, task in here.backend.parked(task_ids):
            here.wake(here.backend.cancel(key, task).wakes)
