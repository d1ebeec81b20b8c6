"""Taking the lock: ask the store, ask the policy, and carry out what comes of it.

Nothing is held unless a lease is returned.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from celery.app.task import Context
from celery.exceptions import TaskPredicate

from celery_dlock.core.access import LimitUnknown
from celery_dlock.core.backoff import CHANCE, pauses
from celery_dlock.core.edits import free_but_for
from celery_dlock.core.events import Contended
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import (
    Busy,
    Drop,
    End,
    Mode,
    Park,
    Reason,
    Run,
    Same,
    WaitMode,
    task_id_of,
)
from celery_dlock.delivery.carry_out import carry_out, without_traceback
from celery_dlock.delivery.execution import Execution
from celery_dlock.delivery.plan import (
    Facts,
    Plan,
    contention,
    duplicate,
    left_over,
    limit_unknown,
    lost,
    plan,
    replaced,
    unanswered,
)
from celery_dlock.delivery.result_state import asks_before_queueing, store_parked, store_retry
from celery_dlock.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockLost,
    StaleFencingToken,
)
from celery_dlock.locks.refused import Refused
from celery_dlock.locks.throttled_warning import ThrottledWarning
from celery_dlock.messages.headers import HISTORY, predecessor
from celery_dlock.messages.unique import duplicate_of
from celery_dlock.messages.woken_queues import tells_redelivery
from celery_dlock.policies.base import Complete, Decision, GiveUp, Queueing, WaitHere
from celery_dlock.policies.shipped import COMES_BACK

logger = logging.getLogger("celery_dlock")

#: Tasks whose order was said to be another than it should be.
_noted: set[str] = set()

#: The warnings that a limit is not known, by task.
_limits_unknown: dict[str, ThrottledWarning] = {}

#: Noted of a delivery of which the main process wants to hear.
FOLLOWED = "followed"

#: In front of the nonce of a delivery that waits for its key now, or has some other answer.
WAITS, ASKED = b"w", b"a"


def deliver(task: Any, request: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the body of *task* under its lock, or of a task that is not to run.

    Raises what the body does, and what tells Celery that the task is not over.
    """
    execution = Execution.begin(task, request, args, kwargs)
    lease = take(execution)
    if not isinstance(lease, Lease):
        return lease
    __tracebackhide__ = True
    try:
        return execution.run(task.lock_body, lease)
    except (LockLost, StaleFencingToken) as exc:
        facts, newer = execution.facts(), lease.replaced
        if newer is not None:
            return carry_out(execution, replaced(facts, lease.key, newer, exc))
        return carry_out(execution, lost(facts, exc))


def take(execution: Execution) -> Lease | dict[str, Any]:
    """The lease, or the result of a task that is not to run.

    Raises Celery's ``Retry`` or ``Ignore`` when the message has gone back to the broker or is a
    duplicate, and the policy's error when it gives up.
    """
    queueing = execution.queueing
    if queueing is not None and queueing.at_publish:
        _note_arrival(execution)
    living = duplicate_of(vars(execution.request)) if execution.is_marked else None
    try:
        if living is not None:
            return carry_out(execution, _duplicate_of(execution, living))
        woken = execution.history.woken
        if woken is not None and _is_left_over(execution, woken):
            return carry_out(execution, left_over(execution.facts()))
        return _take(execution)
    except TaskPredicate as end:
        raise without_traceback(end)  # noqa: B904  # what is told by Celery itself


def _note_arrival(execution: Execution) -> None:
    """Warn once for a task whose order is that of arrival, where it should be another."""
    request, name = execution.request, execution.task.name
    if name in _noted:
        return
    took_place = request.get(HISTORY) is not None
    if not (took_place or request.eta or request.retries):
        _noted.add(name)
        logger.warning(
            "%s takes its place when it is published, but %s was published by its name only, or "
            "over a connection of its own, so it is ordered by its arrival. Define the task where "
            "it is published, and publish through it",
            name,
            request.id,
        )


def _is_left_over(execution: Execution, woken: float) -> bool:
    """Whether it was *woken* so long ago that the store may have forgotten that it is done.

    Such a message has lain in a queue that nobody looked at, and was sent again to another one. If
    nobody has received it before, and the store has no message of it any more, that one was taken.
    """
    past = execution.history
    if past.key is None or time.time() - woken < execution.runtime.remembers / 2:
        return False
    if execution.was_received_before() or not tells_redelivery(execution.task.app):
        return False
    try:
        return execution.runtime.backend.message(past.key, past.task) is None
    except BackendUnavailable:  # the next request for the key fails, too, and tells it
        return False


def _take(execution: Execution) -> Lease | dict[str, Any]:
    began, arrived = time.monotonic(), time.time()
    since = execution.history.since or arrived
    waited_before: float | None = None
    stay_until = 0.0
    pause = pauses()
    while True:
        answer = _answer(execution)
        parked = isinstance(answer, Refused) and isinstance(answer.verdict, Park)
        if FOLLOWED in execution.delivery:
            ToMain.tell(execution.nonce, waits=parked)
        if isinstance(answer, Lease):
            return answer
        if not isinstance(answer, Refused):
            return carry_out(execution, answer)
        if time.monotonic() >= stay_until:
            if waited_before is None:
                waited_before = _waited_before(execution, answer, arrived)
            waited = waited_before + time.monotonic() - began  # a clock may be set in between
            facts = execution.facts(since, waited)
            decision = _decision(execution, facts, answer, first=stay_until == 0)
            if isinstance(decision, Complete | GiveUp):
                facts = replace(facts, follows=_follows_the_holder(execution, answer))
            next_step = plan(facts, answer, decision)
            if not isinstance(next_step, WaitHere):
                return carry_out(execution, next_step)
            stay_until = time.monotonic() + next_step.seconds
            _note_stay(execution, answer, next_step.seconds)
        time.sleep(min(next(pause), max(0.0, stay_until - time.monotonic())))


def _follows_the_holder(execution: Execution, refused: Refused) -> bool:
    """Whether only the task that has published this one keeps it from the key.

    The store is asked only where several may hold the key. One that does not answer refuses nobody.
    """
    busy, claim, parent = refused.verdict, refused.claim, predecessor(execution.request)
    if execution.request.is_eager or not parent or not isinstance(busy, Busy):
        return False
    holder = busy.holder
    if holder is None or busy.hold is not None or busy.full:
        return False
    if holder.mode is Mode.EXCLUSIVE:
        return task_id_of(holder.task) == parent
    try:
        (state,) = execution.runtime.backend.look([claim.key])
    except BackendUnavailable:
        return True
    return free_but_for(state, parent, claim.mode, claim.limit)


def _waited_before(execution: Execution, refused: Refused, arrived: float) -> float:
    """Seconds for which it had waited as it *arrived*, but for those that its key was on hold."""
    if refused.hold is not None:
        began = time.time() - refused.on_hold_for
        execution.history = execution.history.on_hold(began, arrived)
    return execution.history.waited(arrived)


def _note_stay(execution: Execution, refused: Refused, seconds: float) -> None:
    subject, busy, hold = execution.subject, refused.verdict, refused.hold
    holder = busy.holder if isinstance(busy, Busy) else None
    behind = "which is reserved" if holder is None else f"held by {holder.who}"
    logger.info(
        "Task %s[%s] waits in its slot for %r, %.1f s at most, %s",
        *(subject.task_name, subject.task_id, refused.claim.key, seconds),
        behind if hold is None else f"which is on hold, by {hold.who}",
    )


def _answer(execution: Execution) -> Lease | Refused | Plan:
    """The store's answer; a plan if it gives none, or if the task is unique and another lives."""
    unique = execution.unique
    try:
        if unique is None:
            return _ask(execution)
        living = unique.arrives()  # or it might come to wait behind the one that lives
        if living is None:
            answer = _ask(execution)
            if isinstance(answer, Lease):
                living = unique.holds(answer.own[0].key, acked=not execution.task.acks_late)
            else:
                living = unique.refused(answer.claim.key, answer.verdict)
            if living is None:
                return answer
    except BackendUnavailable as exc:
        return unanswered(execution.facts(), exc, CHANCE.random)
    except LimitUnknown as exc:
        return limit_unknown(execution.facts(), exc, CHANCE.random)
    return _duplicate_of(execution, living)


def _ask(execution: Execution) -> Lease | Refused:
    """Ask for the keys of the task, and before that for their limits. Raises as both do."""
    refused = _ask_limits(execution) if execution.task.lock_definition.asks_limits else None
    return _ask_store(execution) if refused is None else refused


def _ask_limits(execution: Execution) -> Refused | None:
    """Ask the functions that say how many may hold its keys.

    The refusal of a task that was woken, where one does not say it: with another one it raises
    :exc:`LimitUnknown`.
    """
    try:
        execution.ask_limits()
    except LimitUnknown as unknown:
        name, woken = execution.task.name, execution.history.key
        warning = _limits_unknown.setdefault(name, ThrottledWarning(own=True))
        warning.warn("%s; the task waits until it says it", unknown, exc_info=unknown.__cause__)
        if woken is None:
            raise
        return _ends_at(execution, woken) or _keep_turn(execution, woken, unknown)
    return None


def _keep_turn(execution: Execution, woken: str, unknown: LimitUnknown) -> Refused:
    """Make sure that the store has the message of the task: it wakes it again, later each time.

    The turn is kept, for the next task would only ask in vain as well. If
    the delivery fails meanwhile, its claims are still released.
    """
    process, entry = execution.runtime, execution.entry
    assert entry is not None  # for it was woken
    turn = next((c for c in execution.claim() if c.key == woken), execution.turn_at(woken))
    turn = replace(turn, wait=WaitMode.ENQUEUE, max_waiting=0)
    store_retry(execution, unknown)
    reply = process.backend.enter(turn, entry.encode({HISTORY: execution.history.header()}))
    process.wake(reply.wakes)
    assert not isinstance(reply.verdict, Run)
    return Refused(turn, reply.verdict, unknown)


def _ends_at(execution: Execution, woken: str) -> Refused | None:
    """The refusal of a task that was *woken* to end."""
    turn = execution.turn_at(woken)
    (state,) = execution.runtime.backend.look([woken])
    ending = next((grant.ending for grant in state.grants if grant.task == turn.task), None)
    return None if ending is None else Refused(turn, End(ending))


def _ask_store(execution: Execution) -> Lease | Refused:
    """Ask the store for the keys of the task, unless its message is waited for elsewhere."""
    hold, keys, woken = execution.hold, execution.keys, execution.history.key
    newer_at, turn = execution.newer_at, None
    if newer_at is not None and (refused := _newer_call(execution, newer_at)) is not None:
        return refused
    if woken is not None and woken not in keys.all:
        # It was debounced there; or the template has changed since it was parked. Until its own key
        # has answered the message stays where it was woken: then the turn there is given back.
        if (ends := _ends_at(execution, woken)) is not None:
            return hold.refused(ends)
        turn, woken = execution.turn_at(woken), None
    max_hold, parents, reserved = execution.max_hold(), keys.parents, execution.reserved
    queueing, claims, answer = execution.queueing, None, None
    if queueing is not None and _looks_first(execution, queueing):
        claims = execution.claim(look=True)
        late = execution.message() if queueing.keep else execution.message
        looked = hold.ask(claims, max_hold, late, woken, parents, reserved)
        answer = None if _has_to_wait(execution, looked) else looked
    if answer is None:
        message = execution.message()  # before the claim, which does not queue if it is too large
        if claims is None or execution.queueing is None:
            claims = execution.claim()
        else:
            claims = tuple(replace(claim, wait=WaitMode.QUEUE) for claim in claims)
        answer = hold.ask(claims, max_hold, message, woken, parents, reserved)
    if turn is not None:
        execution.runtime.manager.take_back([turn])
    if isinstance(answer, Refused) and isinstance(answer.verdict, Busy | Park):
        hold.add_claims(execution.turns())  # should it end: its other keys may be reserved for it
    return answer


def _looks_first(execution: Execution, queueing: Queueing) -> bool:
    """Whether to ask for the keys before queueing for them.

    Most keys are free, and the store has the message of most tasks that were woken: to write it
    down takes longer than to ask. Where an order of publishing was promised, or another delivery
    may know more of the task, it is one question.
    """
    keys = execution.keys.all
    woken = execution.history.key in keys
    if not woken and asks_before_queueing(execution):
        return True
    promised = queueing.keep or queueing.at_publish
    return (woken or execution.is_first) and not promised and len(keys) == 1


def _newer_call(execution: Execution, key: str) -> Refused | None:
    """The refusal of a call that went by the broker, if a newer one has its place in the store.

    The newer one is there under its id: then that is the message of the task.
    """
    (claim, *_) = execution.claim()
    newer = execution.runtime.backend.message(key, claim.task)
    return None if newer is None else execution.hold.refused(Refused(claim, Drop(Reason.WAITING)))


def _has_to_wait(execution: Execution, looked: Lease | Refused) -> bool:
    """Whether the task has to queue after it has *looked*; its result state says so then."""
    if isinstance(looked, Lease) or not isinstance(looked.verdict, Busy | Same):
        return False
    if isinstance(looked.verdict, Busy):
        if execution.facts().is_own(looked.verdict.holder):
            return False
        store_parked(execution, looked.claim.key)
    return True


def _duplicate_of(execution: Execution, living: str) -> Plan:
    """The plan for a task that does the same as the *living* one."""
    unique, key = execution.unique, execution.keys.own[0]
    claim = execution.subject.label if unique is None else unique.terms.name
    return duplicate(execution.facts(), claim, key, living)


def _decision(
    execution: Execution, facts: Facts, refused: Refused, *, first: bool
) -> Decision | None:
    """What the policy decides; ``None`` where the store's answer does.

    A policy of a project's own that breaks gives up with its error. A task of which a run has
    failed is not skipped, or its failure would be gone. The *first* refusal of a delivery is an
    event.
    """
    question = contention(facts, refused)
    if question is None:
        return None
    policy, holder = execution.policy, question.holder.task_id if question.holder else None
    if first:
        execution.runtime.sinks.emit(
            Contended(
                execution.subject,
                question.key,
                holder,
                question.attempt,
                question.waited,
                question.hold,
            )
        )
    try:
        decision: object = policy.decide(question)
    except Exception as exc:
        return GiveUp(exc)
    if isinstance(decision, Complete) and execution.has_begun:
        return COMES_BACK.decide(question)
    if isinstance(decision, Decision):
        return decision
    return GiveUp(
        ConfigurationError(
            f"{policy!r} has decided {decision!r}; decisions are RunLater, Complete, GiveUp and "
            "WaitHere"
        )
    )


class ToMain:
    """A child tells the worker's main process that a delivery has asked for its key.

    While a key is waited for, the main process holds back later messages until the deliveries
    before them have asked (``worker/parking.py``). A message that is lost does no harm: a delivery
    that has ended has asked, too. Children inherit the ``way``; ``None`` where nobody listens.
    """

    way: ClassVar[socket.socket | None] = None

    @classmethod
    def tell(cls, nonce: str, *, waits: bool) -> None:
        """Send it, or drop it where the socket is full."""
        if cls.way is not None:
            with suppress(OSError):
                cls.way.send((WAITS if waits else ASKED) + nonce.encode())
