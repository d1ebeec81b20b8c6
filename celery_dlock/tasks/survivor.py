"""A request that outlives the child that worked on it, and gives back what that one held.

It does so when the process is gone: at once in any case, as abandoned; as done when Celery's own
record of the task is final, which may be known before or after. A message that somebody keeps has
no such record, and runs again.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.app.task import Context
from celery.worker.request import Request
from celery.worker.state import active_requests, task_ready

from celery_dlock.contention import Policy, queueing
from celery_dlock.core.state import Outcome
from celery_dlock.tasks.children import Children, soon
from celery_dlock.tasks.claims import left_by
from celery_dlock.tasks.history import DELIVERY
from celery_dlock.tasks.runtime import runtime

logger = logging.getLogger("celery_dlock")

_LOST = WorkerLostError | SystemExit | KeyboardInterrupt
_PROCESS_ENDS = _LOST | Terminated | TimeLimitExceeded


class Survivor(Request):  # type: ignore[misc]
    """In the worker's main process; the child knows nothing of it."""

    #: Whether something may have kept the child from ending the task itself.
    _broken_off = False
    #: Whether the broker has taken the message back.
    _requeued = False
    #: Whether the child is gone, or through with it; how what it held is to be given back then.
    _gone = False
    _outcome = Outcome.ABANDONED

    @property
    def _policy(self) -> Policy:
        policy: Policy | None = self.task.lock_definition.policy
        return policy or runtime(self.app).policy

    # What Celery tells, in the worker's main loop or in a signal handler.

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        finally:
            if Children.here is not None:
                Children.here.watch(pid, self._child_is_gone)

    def terminate(self, *args: Any, **kwargs: Any) -> None:
        self._broken_off = True
        super().terminate(*args, **kwargs)

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        self._broken_off = True
        super().cancel(*args, **kwargs)

    def reject(self, requeue: bool = False) -> None:
        if not self.acknowledged:  # else it does nothing
            self._requeued = requeue
        super().reject(requeue)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> None:
        if return_ok:  # the child says so, and has given back what it held
            super().on_failure(exc_info, send_failed_event, return_ok)
            return
        self._broken_off = True
        # Its process is reaped by now. Whether it came as far as the store, only the store knows.
        if self._keeps() and self._is_lost(exc_info) and self._give_back():
            task_ready(self)
            self.acknowledge()
            logger.warning("%s has lost its process; the lock store has its message", self)
            return
        super().on_failure(exc_info, send_failed_event, return_ok)
        if not self._requeued and not self._already_cancelled:
            self._outcome = Outcome.DONE
            if not isinstance(_raised(exc_info), _PROCESS_ENDS):
                self._gone = True  # it lives, and could not even begin, or not say how it ended
            soon(self._record_is_final)

    def _is_lost(self, exc_info: Any) -> bool:
        """Whether the process has ended without being told to, by Celery or by its time limit."""
        told = self._already_revoked or self._already_cancelled
        return not told and isinstance(_raised(exc_info), _LOST)

    def _keeps(self) -> bool:
        """Whether the lock store is to have the message, too, while the body runs."""
        asks = queueing(self._policy)
        return asks is not None and asks.keep

    # What the watching thread does.

    def _child_is_gone(self) -> None:
        self._gone = True
        if self._broken_off or self in active_requests:
            self._give_back()

    def _record_is_final(self) -> None:
        if self._gone:
            self._give_back()

    def _give_back(self) -> bool:
        """Whether the task is carried on; a claim that the child has left is not touched by it."""
        here = runtime(self.app)
        request = Context(self._request_dict)
        nonce = self._request_dict[DELIVERY]["nonce"]
        done_ttl = here.done_ttl(queues=queueing(self._policy) is not None)
        claims = left_by(self.task, request, nonce, done_ttl)
        logger.info("%s ended with its process: what it held is given back", self)
        return here.manager.take_back(claims, self._outcome)


def _raised(exc_info: Any) -> BaseException:
    """What the pool says was raised, without its wrapping."""
    exc: Any = exc_info.exception
    raised: BaseException = exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
    return raised
