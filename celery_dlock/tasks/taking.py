"""The way to the lock: ask the store, ask the policy, do what it decides.

This is the only place that carries out a policy's decision. Nothing is held on any way out of
here but the first.
"""

from __future__ import annotations

import time
from typing import assert_never

from celery.exceptions import Ignore, TaskPredicate

from celery_dlock.contention import (
    Complete,
    Contention,
    Decision,
    GiveUp,
    Holder,
    Policy,
    RunLater,
    WaitHere,
    skipped,
)
from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.events import Buried, Contended, Dropped, Parked, Skipped, TimedOut
from celery_dlock.core.lease import SECOND, Lease
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.manager import Refused
from celery_dlock.core.state import (
    Busy,
    Cause,
    Claim,
    Drop,
    End,
    Ending,
    Park,
    Reason,
    Same,
    Wait,
    task_id_of,
)
from celery_dlock.core.state import Holder as Held
from celery_dlock.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockContended,
    LockLost,
    LockTimeout,
)
from celery_dlock.tasks.canvas import stop_chain
from celery_dlock.tasks.execution import Execution
from celery_dlock.tasks.ordered import note_arrival
from celery_dlock.tasks.publish import come_back, reschedule, store_away
from celery_dlock.tasks.telling import looks_first, revoke, tell_parked

#: Between two questions of a task that waits in its slot, in seconds.
ASK_FIRST = 0.01
ASK_LAST = 0.25


def take(execution: Execution) -> Lease | Complete:
    """The lease, or the result of a task that is not to run.

    Raises Celery's ``Retry`` or ``Ignore`` when the message has gone back to the broker or is a
    duplicate, and the policy's error when it gives up.
    """
    note_arrival(execution)
    try:
        return _take(execution)
    except TaskPredicate as gone:
        # Celery copies the code of every frame from there on and sends it to the main process: much
        # work for a task that only goes elsewhere.
        raise gone.with_traceback(None)  # noqa: B904


def _take(execution: Execution) -> Lease | Complete:
    began = time.monotonic()
    since = execution.history.since or time.time()
    waited_before = max(0.0, time.time() - since)
    asked = ASK_FIRST
    stay_until = 0.0
    while True:
        try:
            answer = _ask_store(execution)
        except BackendUnavailable as exc:
            store_away(execution, exc)
        if isinstance(answer, Lease):
            return answer
        execution.claims = (answer.claim,) if _is_left_there(answer) else ()
        if time.monotonic() >= stay_until:
            waited = waited_before + time.monotonic() - began  # a clock may be set in between
            decision = _decide(execution, answer, since, waited)
            if isinstance(decision, Complete):
                return decision
            stay_until = time.monotonic() + decision.seconds
        time.sleep(min(asked * CHANCE.uniform(0.5, 1.0), max(0.0, stay_until - time.monotonic())))
        asked = min(asked * 2, ASK_LAST)


def _is_left_there(refused: Refused) -> bool:
    """Whether the store has something of the task: a turn, its message or a place.

    If the task ends here nevertheless, that goes with the result: a message would run after it, and
    a place hold up others.
    """
    has_place = isinstance(refused.verdict, Busy) and refused.claim.wait is Wait.PLACE
    return has_place or isinstance(refused.verdict, End | Park)


def _decide(
    execution: Execution, refused: Refused, since: float, waited: float
) -> Complete | WaitHere:
    match refused.verdict:
        case Drop(reason=Reason.DEAD):
            key = refused.claim.key
            execution.runtime.sinks.emit(Buried(execution.subject, key, Cause.RUNS_LOST))
            raise LockLost(key, f"{MAX_LOST_RUNS} of its runs were; its message is put aside")
        case Drop(reason=reason):
            event = Dropped(execution.subject, refused.claim.key, reason)
            execution.runtime.sinks.emit(event)
            raise Ignore(f"a duplicate of a task that is {reason} already")
        case Same(holder=holder, left=left):
            if execution.request.is_eager:
                raise LockContended(refused.claim.key, task_id_of(holder.task), left / SECOND)
            come_back(execution, left / SECOND)
        case Busy(holder=holder) if _is_own(execution, holder):
            # Its attempt before, or what it replaces, has published it and is about to leave.
            come_back(execution, 0.0)
        case Busy() as busy:
            return _ask_policy(execution, refused.claim, busy, since, waited)
        case Park():
            execution.runtime.sinks.emit(Parked(execution.subject, refused.claim.key, refused=True))
            raise Ignore(f"waits for {refused.claim.key} in the lock store")
        case End(ending=ending):
            return _end(execution, refused.claim, ending, waited)
        case _:
            assert_never(refused.verdict)


def _ask_store(execution: Execution) -> Lease | Refused:
    manager, called = execution.runtime.manager, execution.history.key
    message, keeping = execution.message(), execution.keeping()
    parents = execution.keys.parents
    if called is not None and called not in execution.keys.all:
        # The template has changed since it was parked: the old key's turn is given back.
        manager.take_back([Claim(called, execution.history.task, execution.nonce, ttl=0)])
    if called is None and looks_first(execution):
        answer = manager.acquire(execution.claim(look=True), keeping, message, parents=parents)
        if isinstance(answer, Lease) or not isinstance(answer.verdict, Busy | Same):
            return answer
        if isinstance(answer.verdict, Busy):
            if _is_own(execution, answer.verdict.holder):
                return answer
            tell_parked(execution, answer.claim.key)
    return manager.acquire(execution.claim(), keeping, message, called, parents)


def _end(execution: Execution, claim: Claim, ending: Ending, waited: float) -> Complete:
    """The task was called to end; its claim is still written down, and goes with the result."""
    match ending:
        case Ending.TIMED_OUT:
            execution.runtime.sinks.emit(TimedOut(execution.subject, claim.key, waited))
            raise LockTimeout(claim.key, waited=waited)
        case Ending.REVOKED:
            revoke(execution, claim.key)
        case Ending.DROPPED:
            return _replaced(execution, claim)
        case _:
            assert_never(ending)


def _replaced(execution: Execution, claim: Claim) -> Complete:
    execution.runtime.sinks.emit(Skipped(execution.subject, claim.key, None))
    result = skipped(claim.key, None, "a newer message took its place in the queue")
    stop_chain(execution.task, execution.request, result)
    return Complete(result)


def _ask_policy(
    execution: Execution, claim: Claim, busy: Busy, since: float, waited: float
) -> Complete | WaitHere:
    key = claim.key
    found = _contention(execution, key, busy, waited)
    holder = found.holder.task_id if found.holder else None
    sinks, subject = execution.runtime.sinks, execution.subject
    sinks.emit(Contended(subject, key, holder, found.attempt, found.waited))
    decision = _decided(execution.policy, found)
    left = found.holder.seconds_left if found.holder else 0.0
    if claim.wait is Wait.PLACE and isinstance(decision, Complete | GiveUp):
        # It does not come back: messages behind its place would be held up until that lapses.
        execution.runtime.manager.take_back([claim])
        execution.claims = ()
    match decision:
        case Complete():
            sinks.emit(Skipped(subject, key, holder))
            if decision.then == "stop":
                stop_chain(execution.task, execution.request, decision.result)
            return decision
        case GiveUp(error=error):
            if isinstance(error, LockTimeout):
                sinks.emit(TimedOut(subject, key, found.waited))
            raise error
        case RunLater() | WaitHere() if execution.request.is_eager:
            # Nobody else could free the key while this thread waits for it.
            raise LockContended(key, holder, left)
        case RunLater(countdown=countdown):
            reschedule(execution, LockContended(key, holder, left), countdown, since)
        case WaitHere():
            return decision
        case _:
            assert_never(decision)


def _decided(policy: Policy, found: Contention) -> Decision:
    """What *policy* decides; one of a project's own that breaks gives up with its error."""
    try:
        decision: object = policy.decide(found)
    except Exception as exc:
        return GiveUp(exc)
    if isinstance(decision, Decision):
        return decision
    return GiveUp(
        ConfigurationError(
            f"{policy!r} has decided {decision!r}; decisions are RunLater, Complete, GiveUp and "
            "WaitHere"
        )
    )


def _is_own(execution: Execution, holder: Held | None) -> bool:
    return holder is not None and task_id_of(holder.task) == execution.request.id


def _contention(execution: Execution, key: str, busy: Busy, waited: float) -> Contention:
    holder = busy.holder
    return Contention(
        key=key,
        task_id=execution.request.id,
        attempt=execution.history.waits,
        waited=waited,
        holder=None
        if holder is None
        else Holder(task_id_of(holder.task), holder.since / SECOND, busy.left / SECOND),
        waiting=busy.parked,
        full=busy.full,
    )
