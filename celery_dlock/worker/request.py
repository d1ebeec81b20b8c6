"""A delivery as the worker's main process sees it: every one passes here exactly once.

The process mints the nonce of the delivery: a redelivered or rescheduled message may carry the
header of an older execution, and must never be taken for its owner. It notes the content type,
which the child does not get to see, so that a message is published again in its own serializer; and
the message as it came, which may have to wait in the store. The child has the same bytes anyway, so
this sends it little more than their names.

The request outlives the child that worked on it, and releases what that one held. It does so
when the process is gone: at once in any case, as abandoned; as done when Celery's own record of the
task is final, which may be known before or after. A message that somebody keeps has no such record,
and runs again.

A message that was woken may become no request: the task is not known here, or the message may not
or cannot be read. Celery discards it. The store still has it and would wake it for ever, so after
some such wakes, by which a worker of another version has had its chances, it becomes a dead letter
and the next one is woken.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any, cast

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import bootsteps, signals
from celery.app.task import Context
from celery.worker import state
from celery.worker.request import Request
from celery.worker.state import active_requests, task_ready
from kombu.utils.imports import symbol_by_name

from celery_dlock.core.state import Cause, Outcome
from celery_dlock.delivery.carry_out import is_parked
from celery_dlock.delivery.unique import end_unique
from celery_dlock.messages.claims import failed, has_keys_kept, left_by
from celery_dlock.messages.headers import (
    DELIVERY,
    HISTORY,
    History,
    delivery_note,
    identity,
    identity_in,
    text_or_none,
    was_woken,
)
from celery_dlock.messages.unique import UNIQUE
from celery_dlock.policies.base import Queueing, queueing
from celery_dlock.runtime import runtime
from celery_dlock.worker.children import Children, soon
from celery_dlock.worker.guard import Guard
from celery_dlock.worker.parking import Handler, Parking
from celery_dlock.worker.parking import strategy as parks_first
from celery_dlock.worker.periodic import Sweeper, expect, next_will_not_come, will_not_come

logger = logging.getLogger("celery_dlock")

_DELIVERY_GUARD = Guard(
    "the lock store cannot keep the message of a task, which may be rescheduled instead"
)
_RELEASE_GUARD = Guard("what a task held may stay locked until its lease expires")
_DEAD_LETTER_GUARD = Guard("a woken message that no task takes is woken again")

#: The event of a task that was started and is parked now. Who keeps Celery's state of tasks takes
#: its type for the state RETRY, which any later event replaces. A state of our own would stay until
#: the task has ended, and "task-retried" would count as a retry.
_WAITS = "task-retry"

_LOST = WorkerLostError | SystemExit | KeyboardInterrupt | Terminated
_PROCESS_ENDS = _LOST | TimeLimitExceeded


#: Tasks of which a message came that does not name the next one of its chain.
_old_protocol: set[str] = set()


def _note_old_protocol(name: str) -> None:
    """Warn once for a task."""
    if name not in _old_protocol:
        _old_protocol.add(name)
        logger.warning(
            "a message of %s has protocol 1, which does not name the next task of its chain: "
            'reserve="chain" keeps nothing for that one. Publish with task_protocol = 2',
            name,
        )


class LockedRequest(Request):  # type: ignore[misc]
    """A request that knows which delivery it is; the child knows nothing of it."""

    #: Whether something may have kept the child from ending the task itself.
    _broken_off = False
    #: Whether the broker was told to take the message back, or to put it where such messages go.
    _rejected = False
    #: Whether the child is gone, or through with it; how what it held is to be released then.
    _child_ended = False
    _outcome = Outcome.ABANDONED

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._delivery: dict[str, Any] = {"nonce": uuid.uuid4().hex}
        self._request_dict[DELIVERY] = self._delivery
        self.woken = False
        with _DELIVERY_GUARD:
            self._note_delivery()

    def _note_delivery(self) -> None:
        headers = self.message.headers or {}
        if self._decoded:  # message protocol 1 has beside its body what the library says
            ours = {name: headers[name] for name in (HISTORY, UNIQUE) if name in headers}
            self._request_dict.update(ours)
            if self.task.lock_definition.reserve == "chain":
                _note_old_protocol(self.task.name)
        self._delivery |= delivery_note(self.message)
        if Parking.current is not None:
            self._delivery |= Parking.current.follow(self)
        self.woken = was_woken(self._request_dict)
        if has_keys_kept(self.task, self._request_dict):
            expect(self)

    def _queueing(self) -> Queueing | None:
        """What the task asks of its key's queue, if its messages wait in the store."""
        return queueing(self.task.lock_definition.policy)

    # What Celery tells, in the worker's main loop or in a signal handler.

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        finally:
            children = Children.current
            if children is not None:
                with _RELEASE_GUARD:
                    children.watch(pid, self._child_is_gone)

    def terminate(self, *args: Any, **kwargs: Any) -> None:
        self._broken_off = True
        super().terminate(*args, **kwargs)

    def cancel(self, *args: Any, **kwargs: Any) -> None:
        self._broken_off = True
        super().cancel(*args, **kwargs)

    def reject(self, requeue: bool = False) -> None:
        if not self.acknowledged:  # else it does nothing
            self._rejected = True
        super().reject(requeue)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> None:
        if return_ok:  # the child says so, and has released what it held
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
            raised = _raised(exc_info)
            if is_parked(raised):
                self.send_event(_WAITS, exception=str(raised))
            return
        self._broken_off = True
        # Its process is reaped by now. Whether it came as far as the store, only the store knows.
        lost, carried_on = self._is_lost(exc_info), False
        with _RELEASE_GUARD:
            # The lock store may be to have the message, too, while the body runs.
            queueing = self._queueing() if lost else None
            carried_on = queueing is not None and queueing.keep and self._release()
        if carried_on:
            task_ready(self)
            self.acknowledge()
            logger.warning("%s has lost its process; the lock store has its message", self)
            return
        if lost and isinstance(_raised(exc_info), Terminated) and not self.acknowledged:
            # It was meant for what had run there before. Celery would store that this is revoked.
            task_ready(self)
            self.reject(requeue=True)
            logger.warning("%s has lost its process; the broker has its message", self)
            return
        try:
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:  # Celery's fails for a message whose callbacks or chord are of another type
            self._release_after(exc_info)

    def _release_after(self, exc_info: Any) -> None:
        if self._already_cancelled:
            return
        if not isinstance(_raised(exc_info), _PROCESS_ENDS):
            self._child_ended = True  # it lives, and could not even begin, or not say how it ended
        elif self._rejected:
            return  # what was abandoned runs when its message comes again
        self._outcome = failed(self.task, let_go=not self._rejected)
        soon(self._record_is_final)

    def on_retry(self, exc_info: Any) -> None:
        try:
            super().on_retry(exc_info)
        finally:
            with _RELEASE_GUARD:
                if self.id in state.revoked and self.task.lock_definition.reserve:
                    next_will_not_come(self)  # revoked as its body ran: it is the last
                sweeper, queueing = Sweeper.current, self._queueing()
                if sweeper is not None and queueing is not None and queueing.at_publish:
                    sweeper.hurry()  # its next attempt waits in the store, and may be due soon

    def _is_lost(self, exc_info: Any) -> bool:
        """Whether the process has ended without being told to, by Celery or by its time limit."""
        on_purpose = self._already_revoked or self._already_cancelled or self._terminate_on_ack
        return not on_purpose and isinstance(_raised(exc_info), _LOST)

    # What the watching thread does.

    def _child_is_gone(self) -> None:
        self._child_ended = True
        if self._broken_off or self in active_requests:
            self._release()

    def _record_is_final(self) -> None:
        if self._child_ended:
            self._release()

    def _release(self) -> bool:
        """Whether the task is carried on; a claim that the child has left is not touched by it."""
        process = runtime(self.app)
        request = Context(self._request_dict)
        nonce = self._delivery["nonce"]
        done_ttl = process.done_ttl(queues=self._queueing() is not None)
        claims = left_by(self.task, request, nonce, done_ttl)
        logger.info("%s ended with its process: its keys are released", self)
        carried = process.manager.take_back(claims, self._outcome)
        if self._outcome.is_final or self._outcome is Outcome.OVER:
            end_unique(self.app, self._request_dict)
        return carried


def _raised(exc_info: Any) -> BaseException:
    """What the pool says was raised, without its wrapping."""
    exc: Any = exc_info.exception
    raised: BaseException = exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
    return raised


def request_class(task: Any) -> Any:
    """The class of the requests of *task*: if it has a lock, ours, in front of one of its own.

    Celery documents ``Task.Request`` for a project's ``on_timeout`` and ``on_failure``. They are
    called for what Celery would call them for, but not for a lost process whose message is kept.
    """
    own = cast("type[Any]", symbol_by_name(task.Request))  # type: ignore[no-untyped-call]
    if not hasattr(task, "lock_definition") or issubclass(own, LockedRequest):
        return own
    if issubclass(LockedRequest, own):
        return LockedRequest
    return type(f"Locked{own.__name__}", (LockedRequest, own), {})


def strategy(task: Any, app: Any, consumer: Any) -> Handler:
    """What a worker does with each message of *task*: its ``Strategy``."""
    type(task).Request = request_class(task)
    return parks_first(task, app, consumer)


@signals.task_revoked.connect  # type: ignore[untyped-decorator]
@_RELEASE_GUARD
def release_turn(
    sender: Any = None, request: Any = None, terminated: bool = False, **_: Any
) -> None:
    """A message that is revoked, or has expired: if it was woken, or its key was reserved for it,
    the next one's turn comes at once.

    Such a message never reaches its task. One whose body is being killed is still at it, and gives
    back what it holds when its process is gone.
    """
    if terminated or not hasattr(sender, "lock_definition") or not isinstance(request, Context):
        return
    will_not_come(request.id)
    if request.get(UNIQUE) is not None:
        soon(lambda: end_unique(sender.app, vars(request), began=bool(request.retries)))
    if History.read(request, identity(request)).key is not None:  # it was woken
        turns = left_by(sender, request)
        soon(lambda: runtime(sender.app).manager.take_back(turns))


@signals.task_unknown.connect  # type: ignore[untyped-decorator]
def dead_letter_unknown(sender: Any, message: Any, name: str = "", **_: Any) -> None:
    """Receives ``task_unknown``."""
    _dead_letter(sender.app, message, name, Cause.UNKNOWN_TASK)


@signals.task_rejected.connect  # type: ignore[untyped-decorator]
def dead_letter_rejected(sender: Any, message: Any, **_: Any) -> None:
    """Receives ``task_rejected``."""
    _dead_letter(sender.app, message, "", Cause.UNREADABLE)


class DeadLetterUndecodable(bootsteps.Step):  # type: ignore[misc]
    """Hears of what cannot be decoded or unpacked: Celery acknowledges it and sends no signal."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        discard = parent.on_decode_error

        def discard_and_dead_letter(message: Any, exc: Exception) -> None:
            discard(message, exc)
            _dead_letter(parent.app, message, "", Cause.UNREADABLE)

        parent.on_decode_error = discard_and_dead_letter


@_DEAD_LETTER_GUARD
def _dead_letter(app: Any, message: Any, name: str, cause: Cause) -> None:
    headers = message.headers or {}
    past = headers.get(HISTORY)
    if not isinstance(past, dict):
        return
    # Message protocol 1 has its id in a body that may not be readable.
    attempt = identity_in(headers) if "id" in headers else text_or_none(past.get("task"))
    key = text_or_none(past.get("key"))
    if key is not None and attempt is not None:
        runtime(app).wake.dead_letter(key, attempt, name, cause)
