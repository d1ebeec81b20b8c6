"""One delivery of a locked task, from the claim to the leave.

The record is put on the request before anything is taken, so whatever interrupts the way (a time
limit can, between any two lines), ``task_postrun`` finds what there is to give back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery.app.task import Context

from celery_dlock.contention import Policy, Queueing, patience, queueing
from celery_dlock.core.current import holding
from celery_dlock.core.events import Acquired, Lost, Released, Subject, TooLarge, Unavailable
from celery_dlock.core.keys import Keys
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.manager import Keeping, Successor
from celery_dlock.core.state import Claim, Outcome, Wait
from celery_dlock.errors import BackendUnavailable
from celery_dlock.tasks.abort import Abort
from celery_dlock.tasks.claims import claims_of, queued
from celery_dlock.tasks.entry import Entry
from celery_dlock.tasks.history import HISTORY, History, delivery_of, identity
from celery_dlock.tasks.once import Once
from celery_dlock.tasks.runtime import Runtime, runtime

if TYPE_CHECKING:
    from celery_dlock.tasks.task import LockedTask

logger = logging.getLogger("celery_dlock")

#: Where the record lies on Celery's request object, which belongs to one execution only.
EXECUTION = "dlock_execution"


@dataclass(slots=True, eq=False)
class Execution:
    """What is known of one delivery. ``lease`` is set while the keys are held.

    ``entry`` is its message, should it wait in the store, and ``asks`` what it asks of the queue;
    ``final`` says that its task has ended, whatever Celery says of this delivery.
    """

    task: LockedTask
    request: Context
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    runtime: Runtime
    history: History
    keys: Keys
    policy: Policy
    subject: Subject
    nonce: str
    content_type: str | None
    asks: Queueing | None
    entry: Entry | None
    claims: tuple[Claim, ...] = ()
    lease: Lease | None = None
    abort: Abort | None = None
    final: bool = False
    told: Once = field(default_factory=Once)
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, task: LockedTask, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Execution:
        """Read the request and put the record on it."""
        _settle_interrupted()
        request = task.request
        definition = task.lock_definition
        here = runtime(task.app)
        who = identity(request)
        delivery = delivery_of(request)
        history = History.read(request, who)
        policy = definition.policy or here.policy
        asks = queueing(policy) if "body" in delivery else None
        execution = cls(
            task=task,
            request=request,
            args=args,
            kwargs=kwargs,
            runtime=here,
            history=history,
            keys=definition.keys(args, kwargs),
            policy=policy,
            subject=Subject(request.id, task.name, definition.label, history.carried),
            nonce=delivery["nonce"],
            content_type=delivery.get("content_type"),
            asks=asks,
            entry=Entry.of_delivery(here.wake.broker, who, delivery) if asks else None,
            claims=_turn(history, delivery["nonce"], here.done_ttl(queues=True)),
        )
        setattr(request, EXECUTION, execution)
        _thread.open.append(execution)
        return execution

    def claim(self, *, look: bool = False) -> tuple[Claim, ...]:
        """The claims of this attempt, written down before the store hears of them.

        With *look* a task that would queue asks first, and is told that the key is taken.
        """
        definition, settings = self.task.lock_definition, self.runtime.settings
        keeps = 0.0 if self.request.is_eager else patience(self.policy, self.history.waits)
        claim = Claim(
            key="",
            task=self.history.task,
            nonce=self.nonce,
            ttl=self.runtime.lease_time(definition.ttl),
            mode=definition.mode,
            limit=definition.limit,
            wait=Wait.PLACE if keeps else Wait.NOT,
            patience=int(keeps * SECOND),
            lock_delay=int(settings.lock_delay * SECOND),
            done_ttl=self.runtime.done_ttl(queues=self.asks is not None),
        )
        if self.asks:
            claim = queued(claim, self.asks, Wait.LOOK if look else Wait.QUEUE)
        self.claims = claims_of(self.keys, claim)
        return self.claims

    def message(self) -> bytes | None:
        """What waits in the store, should this delivery have to; ``None`` if it cannot.

        To be asked before :meth:`claim`: what is too large for the store does not queue.
        """
        if self.entry is None:
            return None
        past = self.history
        waiting = replace(
            past,
            waits=past.waits + 1,
            since=past.since or time.time(),
            carried=self.runtime.sinks.carry(self.subject),
        )
        message = self.entry.encode({HISTORY: waiting.header()})
        if len(message) <= self.runtime.backend.largest_message:
            return message
        self.runtime.sinks.emit(TooLarge(self.subject, len(message)))
        self.entry = self.asks = None
        return None

    def keeping(self) -> Keeping:
        """How long the lease is kept: ``max_hold``, by default the task's hard time limit."""
        limit, _ = self.request.timelimit or (None, None)
        max_hold = (
            self.task.lock_definition.max_hold
            or self.runtime.settings.max_hold
            or limit
            or self.task.time_limit
            or self.task.app.conf.task_time_limit  # which Celery 5.5 does not show as the task's
        )
        return Keeping(max_hold, self._on_lost)

    def run(self, body: Callable[..., Any], lease: Lease) -> Any:
        """Run the body under *lease*."""
        definition = self.task.lock_definition
        self.abort = abort = Abort() if definition.aborts else None
        self.lease = lease
        self.runtime.sinks.emit(self._acquired(lease))
        self.started = time.monotonic()
        with holding(lease, self.runtime.backend):
            kwargs = definition.injected(self.kwargs, lease)
            lease.check()  # it may have stood still since it asked
            if abort is None:
                return body(*self.args, **kwargs)
            return abort.run(lease, body, *self.args, **kwargs)

    def _acquired(self, lease: Lease) -> Acquired:
        now, past, tokens = time.time(), self.history, lease.fencing_tokens
        return Acquired(
            self.subject,
            self.keys.all,
            tuple(tokens.get(key, 0) for key in self.keys.all),
            took=time.monotonic() - self.started,
            ttl=lease.ttl,
            waited=0.0 if past.since is None else max(0.0, now - past.since),
            handed_over=None if past.called is None else max(0.0, now - past.called),
        )

    def ended(self) -> None:
        """Nothing of it is left to be given back."""
        if self in _thread.open:
            _thread.open.remove(self)

    def leave(self, outcome: Outcome, successor: Successor | None = None) -> bool:
        """Give back what is held; whether somebody else carries the message.

        Raises nothing of its own. What a signal interrupted can be said again.
        """
        lease = self.lease
        if lease is None:
            self.runtime.manager.take_back(self.claims, outcome)
            self.claims = ()
            return False
        carried = self._release(lease, outcome, successor)
        self.lease = None
        if outcome is not Outcome.REPEAT:  # else its message may wait there
            self.claims = ()
        return carried

    def _release(self, lease: Lease, outcome: Outcome, successor: Successor | None) -> bool:
        carried = False
        message = self.message() if outcome is Outcome.REPEAT else None
        try:
            carried = self.runtime.manager.release(lease, outcome, message, successor)
        except BackendUnavailable as exc:
            # The lease ends by itself. The result stands; a copy that comes later may run again.
            self.runtime.sinks.emit(Unavailable(self.subject, str(exc)))
        else:
            held = time.monotonic() - self.started
            self.runtime.sinks.emit(Released(self.subject, self.keys.all, outcome, held))
        for term in lease.terms:
            if term.lost:  # noticed only now: the process was stopped, or renewal starved
                self._tell_lost(lease, term, term.lost)
        lease.give_back()
        return carried

    def _on_lost(self, term: Term, reason: str) -> None:
        """From the keeper's side: the body may still run, or may just be leaving."""
        if self.abort is not None:
            self.abort.strike(term.key, reason)
        lease = self.lease
        if lease is not None:
            self._tell_lost(lease, term, reason)

    def _tell_lost(self, lease: Lease, term: Term, reason: str) -> None:
        if not self.told.first(term.key):
            return
        self.runtime.sinks.emit(Lost(self.subject, term.key, reason))
        try:
            self.task.on_lock_lost(lease, self.request.id, self.args, dict(self.kwargs))
        except Exception:
            logger.exception("on_lock_lost of %s failed", self.task.name)


def _turn(history: History, nonce: str, done_ttl: int) -> tuple[Claim, ...]:
    """What it has before it asks for anything: the turn for which it was called, if it was."""
    if history.key is None:
        return ()
    return (Claim(history.key, history.task, nonce, ttl=0, done_ttl=done_ttl),)


class _Thread(threading.local):
    """The executions of one thread or greenlet: the running one, below it what it runs eagerly."""

    def __init__(self) -> None:
        self.open: list[Execution] = []


_thread = _Thread()


def _settle_interrupted() -> None:
    """Give back what an earlier task of this thread could not.

    A soft time limit can strike inside Celery's own dispatch of ``task_postrun``, before anything
    of ours is reached; the keeper would renew that lock for as long as the process lives.
    """
    for execution in list(_thread.open):
        if execution.request not in execution.task.request_stack.stack:
            _thread.open.remove(execution)
            execution.leave(Outcome.ABANDONED)
