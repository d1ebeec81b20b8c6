"""In every worker: calls again who did not answer, and who waits behind a holder that died.

There is no leader. Each worker asks the store for what is due, publishes it, and sleeps until the
next due instant, or for a few seconds: a message that another worker parks meanwhile may be due
before.
"""

from __future__ import annotations

from celery_dlock.tasks.rounds import Rounds
from celery_dlock.tasks.runtime import runtime

#: Seconds; a call is repeated no earlier than after this time anyway.
LONGEST_SLEEP = 5.0


class Sweeper(Rounds):
    """Sweeps once a round."""

    undone = "nothing was swept"
    pause = LONGEST_SLEEP

    def round(self) -> float:
        here = runtime(self._app)
        swept = here.backend.sweep()
        ours = here.wake(swept.wakes)
        if swept.next_in is None or (swept.wakes and not ours):
            return LONGEST_SLEEP  # what was handed back is for another worker to find
        return min(swept.next_in, LONGEST_SLEEP)
