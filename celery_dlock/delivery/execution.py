"""One delivery of a locked task, from its claims to their release.

The record is put on the request before anything is taken, so whatever interrupts the way (a time
limit can, between any two lines), ``task_postrun`` finds what there is to give back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from celery.app.task import Context
from celery.exceptions import TaskPredicate

from celery_dlock.core.access import Keys
from celery_dlock.core.events import Subject, TooLarge
from celery_dlock.core.lease import SECOND, Lease
from celery_dlock.core.state import Claim, EnterVerdict, Outcome, WaitMode
from celery_dlock.delivery.abort import Abort
from celery_dlock.delivery.plan import Facts, comes_back_within
from celery_dlock.delivery.unique import UniqueRun
from celery_dlock.locks.current import make_current
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.hold import Hold
from celery_dlock.locks.manager import Successor
from celery_dlock.messages.claims import claims_of, queued, reserved_for
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.headers import (
    EXECUTION,
    HISTORY,
    STEP,
    History,
    delivery_of,
    identity,
    next_in_chain,
)
from celery_dlock.messages.unique import UNIQUE, debounced_at
from celery_dlock.policies.base import Policy, Queueing, patience, queueing
from celery_dlock.policies.shipped import COMES_BACK
from celery_dlock.runtime import Runtime, runtime, this_process

logger = logging.getLogger("celery_dlock")


@dataclass(slots=True, eq=False)
class Execution:
    """What is known of one delivery, and its ``hold`` on the keys.

    ``delivery`` is what is noted of it, with a ``nonce`` of its own, and ``queueing`` what it asks
    of the queue, if it waits there. It ``is_marked`` if it is of a unique or debounced call, as its
    message says. ``final`` says that its task has ended, whatever Celery says of this delivery.
    It ``ends_itself`` if a function for a limit has raised what tells Celery so. ``next_id`` is the
    task of its chain for which its keys are to be kept, and ``successor`` says that this is
    published. ``next_verdict`` is what the store has said of its next attempt, which waits there.
    """

    task: TaskWithLock
    request: Context
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    runtime: Runtime
    history: History
    keys: Keys
    policy: Policy
    subject: Subject
    delivery: Mapping[str, Any]
    nonce: str
    queueing: Queueing | None
    hold: Hold
    is_marked: bool
    unique: UniqueRun | None = None
    final: bool = False
    ends_itself: bool = False
    body_ended: bool = False
    next_id: str | None = None
    successor: Successor | None = None
    next_verdict: EnterVerdict | None = None
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(
        cls,
        task: TaskWithLock,
        request: Context,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Execution:
        """Read the *request* and put the record on it."""
        if _thread.open:
            _settle_interrupted()
        definition = task.lock_definition
        process = runtime(task.app)
        attempt = identity(request)
        delivery = delivery_of(request)
        history = History.read(request, attempt)
        subject = Subject(request.id, task.name, definition.label, history.carried)
        hold = Hold(
            process.manager,
            process.sinks.emit,
            subject,
            after_loss=partial(_tell_of_loss, task, request.id, args, kwargs),
            is_heard=process.sinks.hears_all,
        )
        keys = definition.keys(args, kwargs)
        execution = cls(
            task=task,
            request=request,
            args=args,
            kwargs=kwargs,
            runtime=process,
            history=history,
            keys=keys,
            policy=definition.policy,
            subject=subject,
            delivery=delivery,
            nonce=str(delivery["nonce"]),
            queueing=queueing(definition.policy) if "body" in delivery else None,
            hold=hold,
            is_marked=request.get(UNIQUE) is not None,
        )
        if history.key is not None:
            hold.claims = tuple(execution.turns())
        if execution.is_marked or definition.unique is not None:
            execution.unique = unique = UniqueRun.of(process, task, attempt, args, kwargs)
            if unique is not None and execution.was_received_before():
                unique.begun = True
        setattr(request, EXECUTION, execution)
        _thread.open.append(execution)
        return execution

    def ask_limits(self) -> None:
        """Ask the functions that say how many may hold its keys. Raises as they do."""
        try:
            self.keys = self.task.lock_definition.limited(self.keys, self.args, self.kwargs)
        except BaseException as exc:
            self.hold.add_claims(self.turns())  # its keys may be reserved for it
            self.ends_itself = isinstance(exc, TaskPredicate)
            raise

    def turns(self) -> list[Claim]:
        """The turn for which it was woken, and those that may be reserved for it meanwhile."""
        woken_at = () if self.history.key is None else (self.history.key,)
        if not (woken_at or self.reserved):
            return []
        return [self.turn_at(key) for key in dict.fromkeys((*woken_at, *self.keys.own))]

    def turn_at(self, key: str) -> Claim:
        """The turn that its task may have at *key*, to be released."""
        done_ttl = self.runtime.done_ttl(queues=True)
        return Claim(key, self.history.task, self.nonce, ttl=0, done_ttl=done_ttl)

    @property
    def entry(self) -> ParkedMessage | None:
        """The message as it came; ``None`` for an eager task."""
        if "body" not in self.delivery:
            return None
        return ParkedMessage.of_delivery(self.runtime.wake.broker, self.history.task, self.delivery)

    def was_received_before(self) -> bool:
        """Whether the broker says that it is redelivered, or has had it in a dead-letter queue."""
        info = self.request.delivery_info or {}
        return bool(info.get("redelivered")) or "x-death" in self.delivery.get("headers", {})

    @property
    def newer_at(self) -> str | None:
        """The key at which the store may have a newer message, if this one is not from there."""
        if not self.is_marked or self.history.key is not None or self.request.retries:
            return None
        return debounced_at(vars(self.request))

    @property
    def is_first(self) -> bool:
        """Whether its task was never refused, retried or delivered before."""
        past, request = self.history, self.request
        before = past.waits or past.unavailable or past.lost or past.key is not None
        again = request.retries or request.replaced_task_nesting or self.was_received_before()
        return not (before or again)

    @property
    def has_begun(self) -> bool:
        """Whether a run of its task has failed, or lost its lock: another one is owed to it."""
        return bool(self.request.retries or self.history.lost)

    @property
    def reserved(self) -> tuple[str, ...]:
        """The keys that may be kept for it: by its attempt before, or by the step before.

        Of several keys one that is ordered keeps the first, whatever it waits for: behind that wait
        the calls with the same keys.
        """
        several = self.queueing is not None and self.queueing.ordered and len(self.keys.own) > 1
        first = (self.keys.first,) if several else ()
        if not (self.request.retries or self.request.get(STEP)):
            return first  # as nearly always
        return (*first, *reserved_for(self.task, vars(self.request), self.keys))

    def facts(self, since: float = 0.0, waited: float = 0.0) -> Facts:
        """The facts that decide its plan."""
        eager, queues = bool(self.request.is_eager), self.queueing is not None
        repeated = not self.is_first
        return Facts(
            self.subject,
            self.history,
            eager,
            queues,
            since,
            waited,
            repeated=repeated,
            policy=self.policy,
        )

    def claim(self, *, look: bool = False) -> tuple[Claim, ...]:
        """The claims of this attempt.

        With *look* a task that would queue asks first, and is told that the key is taken. An eager
        task has no message, of which a duplicate might come: Celery gives all steps of an eager
        chain one id.
        """
        definition = self.task.lock_definition
        eager, attempt = bool(self.request.is_eager), self.history.task
        keeps = 0.0 if eager else patience(self.policy, self.history.waits)
        if self.has_begun and not eager:
            keeps = keeps or patience(COMES_BACK, self.history.waits)
        trouble = comes_back_within(self.history) if self.queueing else 0.0
        remembers = self.runtime.done_ttl(queues=bool(self.queueing or self.history.key))
        terms: dict[str, Any] = {
            "task": f"{attempt}~{self.nonce}" if eager else attempt,
            "nonce": self.nonce,
            "ttl": self.runtime.lease_time(definition.ttl),
            "wait": WaitMode.PLACE if keeps else WaitMode.NOT,
            "patience": int(max(keeps, trouble) * SECOND),
            "done_ttl": 0 if eager else remembers,
            "name": self.task.name,
            "where": this_process(self.request.hostname),
        }
        if self.queueing:
            wait = WaitMode.LOOK if look else WaitMode.QUEUE
            terms |= queued(self.queueing, wait, first=self.is_first, begun=self.has_begun)
        return claims_of(self.keys, terms)

    def message(self) -> bytes | None:
        """What waits in the store, should this delivery have to; ``None`` if it cannot.

        To be asked before :meth:`claim`: what is too large for the store does not queue.
        """
        entry = self.entry if self.queueing else None
        if entry is None:
            return None
        past = self.history
        waiting = replace(
            past,
            waits=past.waits + 1,
            since=past.since or time.time(),
            carried=self.runtime.sinks.carry(self.subject),
        )
        message = entry.encode({HISTORY: waiting.header()})
        if len(message) <= self.runtime.backend.largest_message:
            return message
        self.runtime.sinks.emit(TooLarge(self.subject, len(message)))
        self.queueing = None
        return None

    def max_hold(self) -> float | None:
        """For how long the lease is kept at most: the hard time limit, or else the setting."""
        limit, _ = self.request.timelimit or (None, None)
        return (
            limit
            or self.task.time_limit
            or self.runtime.time_limit  # which Celery 5.5 does not show as the task's
            or self.runtime.settings.max_hold
        )

    def run(self, body: Callable[..., Any], lease: Lease) -> Any:
        """Run the body under *lease*.

        It stays the current one until it is released: Celery calls error callbacks and eager links
        after the body, in the same process.
        """
        definition, past, now = self.task.lock_definition, self.history, time.time()
        abort = Abort() if definition.aborts else None
        self.hold.strike = None if abort is None else abort.strike
        self.hold.taken(
            lease,
            took=time.monotonic() - self.started,
            waited=0.0 if past.since is None else max(0.0, now - past.since),
            since_woken=None if past.woken is None else max(0.0, now - past.woken),
        )
        make_current(lease, self.runtime.backend)
        kwargs = definition.injected(self.kwargs, lease)
        lease.check()  # it may have stood still since it asked
        __tracebackhide__ = True
        try:
            if abort is None:
                return body(*self.args, **kwargs)
            return abort.run(lease, body, *self.args, **kwargs)
        finally:
            self.body_ended = True
            if definition.reserve == "chain" and not self.request.is_eager:
                self.next_id = next_in_chain(self.request)

    def ended(self) -> None:
        """Note that nothing is left to be released."""
        executions = _thread.open
        if self in executions:
            executions.remove(self)


def _tell_of_loss(
    task: TaskWithLock, task_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], lease: Lease
) -> None:
    try:
        task.on_lock_lost(lease, task_id, args, dict(kwargs))
    except Exception:
        logger.exception("on_lock_lost of %s failed", task.name)


class _Thread(threading.local):
    """The executions of one thread or greenlet: the running one, below it what it runs eagerly."""

    def __init__(self) -> None:
        self.open: list[Execution] = []


_thread = _Thread()


def _settle_interrupted() -> None:
    """Release what an earlier task of this thread could not.

    A soft time limit can strike inside Celery's own dispatch of ``task_postrun``, before anything
    of ours is reached; the keeper would renew that lock for as long as the process lives.
    """
    for execution in list(_thread.open):
        if execution.request not in execution.task.request_stack.stack:
            _thread.open.remove(execution)
            execution.hold.give_back(Outcome.ABANDONED)
