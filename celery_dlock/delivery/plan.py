"""What becomes of a delivery that is refused its keys, or has lost them.

Decided here from what is known, without asking anybody or doing anything; ``carry_out`` does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from celery_dlock.core import events
from celery_dlock.core.access import LimitUnknown
from celery_dlock.core.backoff import FullJitter
from celery_dlock.core.lease import SECOND
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import (
    Busy,
    Cause,
    Drop,
    End,
    Ending,
    Holder,
    Park,
    Reason,
    Same,
    task_id_of,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST
from celery_dlock.errors import (
    BackendUnavailable,
    LockContended,
    LockLost,
    LockTimeout,
    StaleFencingToken,
)
from celery_dlock.locks.refused import Refused
from celery_dlock.messages.headers import History
from celery_dlock.policies.base import (
    Complete,
    Contention,
    Decision,
    GiveUp,
    HolderInfo,
    Policy,
    RunLater,
    WaitHere,
)
from celery_dlock.policies.shipped import GRACE, limit_of, skipped

_AFTER_TROUBLE = FullJitter(base=1, cap=60)

#: Seconds within which a task that has published its next steps has released its keys, if all is
#: well: its body has ended.
RELEASES_WITHIN = 1.0

Random = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides the plan of a delivery; ``queues``: whether its message may wait in the store.
    The ``policy`` is there for errors, which name its limit.

    It was first refused at ``since``, and has ``waited`` for so many seconds. ``follows`` is
    whether the key would be free but for the task that published this one. It is ``repeated`` if
    it is known to have been delivered, or published, before.
    """

    subject: events.Subject
    history: History
    eager: bool
    queues: bool
    since: float = 0.0
    waited: float = 0.0
    follows: bool = False
    repeated: bool = True
    policy: Policy | None = None

    def is_own(self, holder: Holder | None) -> bool:
        """Whether *holder* is another attempt of the same task, or what it replaces.

        An eager task has no other: it only shares its id.
        """
        if holder is None or self.eager:
            return False
        return task_id_of(holder.task) == task_id_of(self.history.task)


@dataclass(frozen=True, slots=True)
class Finish:
    """The task ends with a result, without its body."""

    result: Complete
    event: events.Event


@dataclass(frozen=True, slots=True)
class Revoke:
    """The task ends as revoked."""

    event: events.Event


@dataclass(frozen=True, slots=True)
class FailWith:
    """The task fails; ``gives_back`` is whether the store hears of what it was asked for."""

    error: Exception
    event: events.Event | None = None
    gives_back: bool = True


@dataclass(frozen=True, slots=True)
class Gone:
    """The delivery ends, and its task does not: it is a duplicate, or ``parked``, or both."""

    reason: str
    event: events.Event | None = None
    parked: bool = False


@dataclass(frozen=True, slots=True)
class Resend:
    """Its message is published again, with another past and a countdown.

    If ``ends`` is an error, the task's state is ``RETRY`` for that; with a text nothing is stored.
    What no policy chose is ``bounded`` by what the broker allows.
    """

    countdown: float
    history: History
    reason: str
    ends: Exception | str
    event: events.Event | None = None
    bounded: bool = True


@dataclass(frozen=True, slots=True)
class Repeat:
    """The lock goes back first: what the store says of its message decides (:func:`repeated`)."""

    error: LockLost | StaleFencingToken
    event: events.Event | None = None


Plan = Finish | Revoke | FailWith | Gone | Resend | Repeat


def contention(facts: Facts, refused: Refused) -> Contention | None:
    """What the policy is asked; ``None`` where the store's answer decides."""
    busy = refused.verdict
    if not isinstance(busy, Busy) or facts.is_own(busy.holder):
        return None
    error, holder = refused.error, None if busy.hold else busy.holder
    return Contention(
        key=refused.claim.key,
        task_id=facts.subject.task_id,
        attempt=facts.history.waits,
        waited=facts.waited,
        holder=None
        if holder is None
        else HolderInfo(
            task_id_of(holder.task), holder.since / SECOND, busy.left / SECOND, holder.who
        ),
        waiting=busy.parked,
        full=busy.full,
        opens_in=error.seconds_left if holder is None else 0.0,
        hold=error.hold,
    )


def plan(facts: Facts, refused: Refused, decision: Decision | None) -> Plan | WaitHere:
    """What a refusal comes to; *decision* is what the policy said to its :func:`contention`."""
    key, subject = refused.claim.key, facts.subject
    match refused.verdict:
        case Drop(reason=Reason.DEAD):
            error = LockLost(
                key, f"so were {MAX_LOST_RUNS} of its runs; its message is a dead letter"
            )
            return FailWith(error, events.DeadLettered(subject, key, Cause.RUNS_LOST))
        case Drop(reason=reason):
            return _dropped(facts, refused, reason)
        case Same(holder=holder, left=left):
            if facts.eager:
                return FailWith(refused.error)
            return _looks_again(facts, left / SECOND)
        case Busy(holder=holder):
            if facts.is_own(holder):
                # Its attempt before, or what it replaces, has published it and is about to leave.
                return _looks_again(facts, 0.0)
            assert decision is not None
            return _decided(facts, refused.error, decision)
        case Park() as parked:
            event = waits_behind(subject, key, parked)
            return Gone(f"waits for {key} in the lock store", event, parked=True)
        case End(ending=Ending.DROPPED, by=newer) if newer:
            return replaced(facts, key, task_id_of(newer))
        case End(ending=ending):
            return _ended(facts, key, ending)
        case _:
            assert_never(refused.verdict)


def _dropped(facts: Facts, refused: Refused, reason: Reason) -> Gone:
    """A duplicate; or the task itself, which was woken and keeps its turn."""
    subject, why = facts.subject, refused.because
    if why is not None and reason is Reason.WAITING:
        later = events.Rescheduled(subject, str(why), WAKE_AGAIN_FIRST / SECOND)
        return Gone(f"keeps its turn in the lock store: {why}", later, parked=True)
    event = events.Dropped(subject, refused.claim.key, reason, facts.repeated)
    reads = f"a duplicate of a task that is already {reason}"
    return Gone(reads, event, parked=reason is Reason.WAITING)


def waits_behind(subject: events.Subject, key: str, parked: Park) -> events.Parked:
    """The event that its message waits for *key*."""
    holder = parked.holder
    event = events.Parked(subject, key, refused=True, hold=parked.hold.who if parked.hold else "")
    if holder is None:
        return event
    return replace(event, holder=task_id_of(holder.task), by=holder.who)


def duplicate(facts: Facts, claim: str, key: str, living: str) -> Finish:
    """A task that does the same as the *living* one ends as if it were skipped."""
    result = {**skipped(key, None, f"a duplicate of {living}"), "holder": living}
    event = events.Deduplicated(facts.subject, claim, living, published=True)
    return Finish(Complete(result), event)


def replaced(facts: Facts, key: str, newer: str, error: Exception | None = None) -> Finish:
    """A newer task runs instead; this one ends as if it were skipped, maybe with this *error*."""
    why = f"replaced by {newer}"
    result = {**skipped(key, None, why), "holder": newer}
    event = _stale(facts, error) or events.Skipped(facts.subject, key, newer, why)
    return Finish(Complete(result), event)


def _stale(facts: Facts, error: Exception | None) -> events.StaleRejected | None:
    if isinstance(error, StaleFencingToken):
        return events.StaleRejected(facts.subject, error.resource, error.mine)
    return None


def _looks_again(facts: Facts, left: float) -> Resend:
    """Another copy of this task is running: it comes back when that one's lease would end.

    It may be the only one that survives the other's worker, so it is kept; and it never writes a
    result, nor counts as a wait.
    """
    ends = "another delivery of this task is running"
    return Resend(min(max(left, 1.0), 60.0), facts.history, "this task is running", ends)


def _waits_for_predecessor(facts: Facts, left: float) -> WaitHere | Resend:
    """The task that has published this one is no reason to refuse it, whatever the policy says.

    Celery publishes the next step of a chain before a task has ended, so it may come faster than
    the key is released. If that takes longer (its worker was killed), this one comes back when that
    lease would end.
    """
    if facts.waited < RELEASES_WITHIN:
        return WaitHere(RELEASES_WITHIN - facts.waited)
    reason = "the task that published it has the key"
    return Resend(min(max(left, 1.0), 60.0), facts.history, reason, reason)


def _decided(facts: Facts, error: LockContended, decision: Decision) -> Plan | WaitHere:
    subject, key = facts.subject, error.key
    match decision:
        case Complete() | GiveUp() if facts.follows:
            return _waits_for_predecessor(facts, error.seconds_left)
        case Complete():
            reason = decision.result.get("reason")
            return Finish(decision, events.Skipped(subject, key, error.holder, reason, error.by))
        case GiveUp(error=LockTimeout() as late):
            return FailWith(late, events.TimedOut(subject, key, facts.waited))
        case GiveUp(error=own):
            return FailWith(own)
        case RunLater() | WaitHere() if facts.eager:
            # Nobody else could free the key while this thread waits for it.
            return FailWith(error)
        case RunLater(countdown=countdown):
            past = facts.history
            past = replace(past, waits=past.waits + 1, since=facts.since)
            if error.hold:  # by which time it may well have ended: that is not to be known
                closed = min(countdown, error.seconds_left)
                past = past.on_hold(past.held_until, past.held_until + closed)
            return Resend(countdown, past, error.why, error, bounded=False)
        case WaitHere():
            return decision
        case _:
            assert_never(decision)


def _ended(facts: Facts, key: str, ending: Ending) -> Plan:
    """A task that was woken to end."""
    subject, waited = facts.subject, facts.waited
    match ending:
        case Ending.TIMED_OUT:
            late = LockTimeout(key, waited=waited, limit=limit_of(facts.policy, "max_wait"))
            return FailWith(late, events.TimedOut(subject, key, waited))
        case Ending.REVOKED:
            return Revoke(events.Revoked(subject, key))
        case Ending.DROPPED:
            why = "a newer call has replaced it in the queue"
            return Finish(
                Complete(skipped(key, None, why)), events.Skipped(subject, key, None, why)
            )
        case _:
            assert_never(ending)


def left_over(facts: Facts) -> Plan:
    """A message that was woken, sent again since, and taken from there."""
    assert facts.history.key is not None
    dropped = events.Dropped(facts.subject, facts.history.key, Reason.DONE)
    return Gone("it was woken long ago, and was taken from the store since", dropped)


def unanswered(facts: Facts, error: BackendUnavailable, random: Random) -> Plan:
    """The store does not answer: the message waits for it in the broker. An eager task fails."""
    event = events.Unavailable(facts.subject, str(error))
    if facts.eager:
        return FailWith(error, event, gives_back=False)
    return _put_off(facts, error, random, event)


def limit_unknown(facts: Facts, error: LimitUnknown, random: Random) -> Plan:
    """A function does not say a limit: the message waits in the broker until it does."""
    return FailWith(error) if facts.eager else _put_off(facts, error, random)


def _put_off(
    facts: Facts, error: Exception, random: Random, event: events.Event | None = None
) -> Resend:
    past = facts.history
    countdown = _AFTER_TROUBLE.delay(past.unavailable, random)
    past = replace(past, unavailable=past.unavailable + 1)
    return Resend(countdown, past, str(error), error, event)


def comes_back_within(history: History) -> float:
    """Seconds in which a message comes again that :func:`unanswered` gives back to the broker."""
    return _AFTER_TROUBLE.ceiling(history.unavailable) + GRACE


def lost(facts: Facts, error: LockLost | StaleFencingToken) -> Plan:
    """The body ended because its lock was gone. That is no failure: the message runs again.

    Where that has happened too often the task fails visibly. The store counts those that it keeps.
    """
    event = _stale(facts, error)
    if facts.eager or facts.history.lost >= MAX_LOST_RUNS:
        return FailWith(error, event)
    return Repeat(error, event)


def repeated(
    facts: Facts, error: LockLost | StaleFencingToken, random: Random, *, carried: bool
) -> Plan:
    """The lock was given back; *carried* is whether somebody else has the message by now."""
    if carried and facts.queues:
        return Gone(f"{error}; the lock store has its message", parked=True)
    past = facts.history
    # Also when another delivery is running: on some brokers (Redis) it is the same message to
    # acknowledge, so this one could take away the only copy that survives the other's worker.
    ends = f"{error}; another delivery of this task has it" if carried else error
    countdown = _AFTER_TROUBLE.delay(past.lost, random)
    return Resend(countdown, replace(past, lost=past.lost + 1), str(error), ends)
