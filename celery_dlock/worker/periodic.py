"""What every worker does again and again, each in a thread of its main process.

It sweeps: it wakes tasks again that did not answer, and tasks behind a holder that died. There is
no leader. Each worker asks the store for what is due, publishes it, and sleeps until the next due
instant, or for a few seconds: a message that another worker parks meanwhile may be due before.
Where nobody waits nothing is due, so that a free key costs no more: a holder that has died is gone
when the next task asks for its key. For the keys that nobody asks for again, each worker looks
through those in use, a page at a time.

A revoked task that waits in the store ends at once, and not when its turn comes. Celery keeps what
was revoked in the memory of the workers, and forgets it. Each worker therefore looks for those ids
among the messages that wait, soon after it has heard of them; in the store the end is written down.
It looks twice, because a task may just be on its way into the queue.

A retry for which its key is reserved may not come either: it is revoked, or has expired. Others
would wait until a minute after it is due. The store does not have its message, so it is not found
there: the worker that has it, or that has run the attempt before, releases the key.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from celery import bootsteps
from celery.app.task import Context
from celery.worker import state
from celery.worker.request import Request

from celery_dlock.core.state import Claim
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.probe import check_writes
from celery_dlock.locks.throttled_warning import ThrottledWarning
from celery_dlock.messages.claims import left_by
from celery_dlock.messages.headers import identity_of_next
from celery_dlock.runtime import Runtime, runtime
from celery_dlock.worker.children import soon

logger = logging.getLogger("celery_dlock")

#: Seconds between two sweeps; a wake is repeated no earlier than after this time anyway.
LONGEST_SLEEP = 5.0


class PeriodicStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """One thread, started after the pool has forked. It survives a run that fails."""

    requires = frozenset({"celery.worker.components:Pool"})

    #: What a run that failed has left undone, for the log.
    failure: ClassVar[str]
    #: Seconds until the next run after one that failed.
    pause_after_failure: ClassVar[float]

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._app = parent.app
        self._interrupt = threading.Event()
        self._ends = False
        name = f"celery-dlock-{type(self).__name__.lower()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, parent: Any) -> None:
        self._thread.start()

    def stop(self, parent: Any) -> None:
        self._ends = True
        self._interrupt.set()

    def hurry(self) -> None:
        """Run once more now, also if it just runs."""
        self._interrupt.set()

    @abstractmethod
    def run_once(self) -> float:
        """Do it once; seconds until the next time."""

    def _run(self) -> None:
        while True:
            self._interrupt.clear()
            if self._ends:
                return
            self._interrupt.wait(self._next_in())

    def _next_in(self) -> float:
        try:
            pause = self.run_once()
        except BackendUnavailable as exc:
            logger.debug("%s: %s", self.failure, exc)
        except Exception:  # a defect must not end the thread
            logger.exception(self.failure)
        else:
            return pause
        return self.pause_after_failure


#: Seconds after which a store that has taken a write is asked whether it still does, and the next
#: page of keys is looked at for holders that have expired.
CHECK_WRITES_EVERY = 30.0

LOST_DATA = (
    "the lock store has lost data: it is empty, or restored from a backup. Fencing tokens may be "
    "smaller than before; raise dlock_fencing_epoch by one if fenced writes depend on them"
)


class Sweeper(PeriodicStep):
    """Sweeps once a run. It asks the store all the time, so it says for all of the worker when that
    is unavailable, and when it is available again. A sweep that finds nothing only reads: whether
    the store takes writes is asked beside it.
    """

    failure = "a sweep of the lock store failed"
    pause_after_failure = LONGEST_SLEEP

    #: That of this process; ``None`` where no worker runs.
    current: ClassVar[Sweeper | None] = None

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._warning = ThrottledWarning()
        self._check_writes_at = -inf
        self._cursor = ""

    def start(self, parent: Any) -> None:
        Sweeper.current = self
        super().start(parent)

    def stop(self, parent: Any) -> None:
        Sweeper.current = None
        super().stop(parent)

    def run_once(self) -> float:
        process = runtime(self._app)
        checks = time.monotonic() >= self._check_writes_at
        try:
            if checks:
                check_writes(process.backend, process.lease_time(None))
                self._check_writes_at = time.monotonic() + CHECK_WRITES_EVERY
            swept = process.backend.sweep()
        except BackendUnavailable as exc:
            self._warning.warn("the lock store is unavailable: %s", exc)
            raise
        self._warning.resolved("the lock store is available again")
        if swept.lost_data:
            logger.warning(LOST_DATA)
        ours = process.wake(swept.wakes)
        if checks:
            self._reap_expired(process)
        if swept.next_in is None or (swept.wakes and not ours):
            return LONGEST_SLEEP  # what was handed back is for another worker to find
        return min(swept.next_in, LONGEST_SLEEP)

    def _reap_expired(self, process: Runtime) -> None:
        """Let time pass on those keys of the next page whose holders have expired."""
        backend = process.backend
        page = backend.keys(self._cursor)
        self._cursor = page.cursor or ""
        if not page.keys:
            return
        states, now = backend.look(page.keys), backend.now()
        for key, at_key in zip(page.keys, states, strict=True):
            if any(holder.expires <= now for holder in at_key.holders):
                process.wake(backend.reap(key).wakes)


#: Seconds between two looks at what this worker has heard, and before an id is looked for again.
INTERVAL = 0.5
LOOK_AGAIN_AFTER = 10.0

#: By task id, the requests of retries that this process has and whose keys are reserved for them.
_retries: WeakValueDictionary[str, Request] = WeakValueDictionary()


class EndRevoked(PeriodicStep):
    """It asks the store only after a revocation."""

    failure = "the search for revoked tasks that wait failed"
    pause_after_failure = INTERVAL

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._look_at: dict[str, float] = {}

    def run_once(self) -> float:
        revoked = set(state.revoked) if len(state.revoked) else set[str]()
        for forgotten in self._look_at.keys() - revoked:
            del self._look_at[forgotten]
        now = time.monotonic()
        due = {task_id for task_id in revoked if now >= self._look_at.get(task_id, now)}
        if due:
            self._end(due)
        for task_id in due:
            self._look_at[task_id] = inf if task_id in self._look_at else now + LOOK_AGAIN_AFTER
        return INTERVAL

    def _end(self, task_ids: set[str]) -> None:
        process = runtime(self._app)
        for key, task in process.backend.parked(task_ids):
            process.wake(process.backend.cancel(key, task).wakes)
        for task_id in task_ids:
            will_not_come(task_id)


def expect(retry: Request) -> None:
    """Note that this process has it."""
    _retries[retry.id] = retry


def will_not_come(task_id: str) -> None:
    """The retry of *task_id*, if this process has one, is not going to run."""
    retry = _retries.get(task_id)
    if retry is not None:
        _release(retry.app, left_by(retry.task, Context(retry.request_dict)))


def next_will_not_come(request: Request) -> None:
    """*request* has published its retry, which is not going to run."""
    claims = left_by(request.task, Context(request.request_dict))
    _release(request.app, [replace(c, task=identity_of_next(c.task)) for c in claims])


def _release(app: Any, claims: Sequence[Claim]) -> None:
    soon(lambda: _now(app, claims))


def _now(app: Any, claims: Sequence[Claim]) -> None:
    """A message that waits in the store stays there: its end is written down, and it is woken."""
    process = runtime(app)
    for claim in claims:
        try:
            (state,) = process.backend.look([claim.key])
        except BackendUnavailable as exc:
            logger.warning("%s is reserved for %s for a while: %s", claim.key, claim.task, exc)
            continue
        if any(turn.task == claim.task and not turn.parked for turn in state.grants):
            process.manager.take_back([claim])
