"""What happened to a lock, told to whoever listens.

A sink is a callable that takes an event; it runs in the thread where the thing happened and can
never raise into a task. A ``holder`` is the id of a task, and ``by`` its name, its id and its
process, for people; ``hold`` says which person keeps the key closed, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import DEBUG, INFO, WARNING

from celery_dlock.core.event import LEAD as LEAD
from celery_dlock.core.event import Event as Event
from celery_dlock.core.event import Labels as Labels
from celery_dlock.core.event import Sink as Sink
from celery_dlock.core.event import State as State
from celery_dlock.core.event import Subject as Subject
from celery_dlock.core.event import plain as plain
from celery_dlock.core.measures import (
    ACQUISITION,
    HOLD,
    REFUSED,
    SHARED,
    SINCE_WOKEN,
    TTL,
    WAIT,
    WOKEN_AGAIN,
    Measurement,
    counter,
)
from celery_dlock.core.sentences import count, seconds, short
from celery_dlock.core.state import Outcome

_ANY = frozenset(State)
_UNKNOWN_END = "it is no longer in the lock store, and it is not known how it ended"


def _why_refused(holder: str | None, by: str, hold: str = "") -> str:
    if hold:
        return f"was on hold, by {short(hold)}"
    if by or holder:
        return f"was held by {by or holder}"
    return "was reserved for a waiting task, or was cooling down"


@dataclass(frozen=True, slots=True)
class Acquired(Event):
    """The keys were taken, under a lease of ``ttl`` seconds; a key that is only read has token 0.

    ``took`` is how long this delivery asked for them, round trips included; ``waited`` how long ago
    the task was first refused, or took its place as it was published; ``since_woken`` how long ago
    it was woken in the queue, ``None`` if it was not. All are in seconds, and but for ``took``
    they compare the clocks of two hosts.
    """

    keys: tuple[str, ...]
    tokens: tuple[int, ...]
    took: float
    ttl: float
    waited: float = 0.0
    since_woken: float | None = None

    level, counts, after = DEBUG, None, State.RUNNING
    hint = "it no longer holds the lock: it has just ended, or its worker is gone"

    def sentence(self) -> str:
        token = f" with token {self.tokens[0]}" if self.tokens[0] else ""
        after = f" after waiting {seconds(self.waited)}" if self.waited else ""
        return f"took {self.keys[0]!r}{token}{after}"

    def measured(self) -> Sequence[Measurement]:
        measured = [(ACQUISITION, self.took), (TTL, self.ttl)]
        if self.waited:
            measured.append((WAIT, self.waited))
        if self.since_woken is not None:
            measured.append((SINCE_WOKEN, self.since_woken))
        return measured


@dataclass(frozen=True, slots=True)
class Contended(Event):
    """``key`` is held by another; ``attempt`` counts from 0, ``waited`` is in seconds."""

    key: str
    holder: str | None
    attempt: int
    waited: float
    hold: str = ""

    level, counts, after = DEBUG, REFUSED, State.UNKNOWN
    hint = "it is not known how it ended"

    def sentence(self) -> str:
        return f"was refused: {self.key!r} {_why_refused(self.holder, '', self.hold)}"

    def measured(self) -> Sequence[Measurement]:
        return ((REFUSED, 1),) if self.attempt == 0 else ()


@dataclass(frozen=True, slots=True)
class Parked(Event):
    """The message waits in the queue of ``key``; it has left the worker.

    It was not ``refused`` if it took its place as it was published.
    """

    key: str
    refused: bool
    holder: str | None = None
    by: str = ""
    hold: str = ""

    level, after, hint = INFO, State.WAITING, _UNKNOWN_END
    counts = counter("dlock_parked", "Messages that were parked in the lock store")

    def sentence(self) -> str:
        why = f", which {_why_refused(self.holder, self.by, self.hold)}"
        if not self.refused:
            return f"was parked at {self.key!r} when it was published{why if self.hold else ''}"
        if self.holder == self.subject.task_id:
            why = ": another delivery of it was running"
        return f"was refused and parked at {self.key!r}{why}"

    def log_level(self) -> int:
        return self.level if self.refused else DEBUG

    def measured(self) -> Sequence[Measurement]:
        usual = Event.measured(self)
        return (*usual, (REFUSED, 1)) if self.refused else usual


@dataclass(frozen=True, slots=True)
class Woken(Event):
    """The message was published again: its turn has come, or it ends for the reason given.

    It was sent to *queue*, or by that routing key, and woken in vain so often *before*.
    """

    key: str
    ending: str | None
    queue: str = ""
    before: int = 0

    level, after = INFO, State.WOKEN
    counts = counter("dlock_woken", "Messages that were woken from the lock store")
    hint = "no worker has taken it since: does one consume its queue?"

    def sentence(self) -> str:
        why = f"to end: {self.ending}" if self.ending else "because its turn had come"
        again = f" again, after {count(self.before, 'unanswered wake')}," if self.before else ""
        to = f", and sent to {short(self.queue)}" if self.queue else ""
        return f"was woken{again} from the queue of {self.key!r} {why}{to}"

    def measured(self) -> Sequence[Measurement]:
        usual = Event.measured(self)
        return (*usual, (WOKEN_AGAIN, 1)) if self.before else usual


@dataclass(frozen=True, slots=True)
class Revoked(Event):
    """The task was revoked while it waited for ``key``; its result says so."""

    key: str

    level, after = INFO, State.REVOKED
    counts = counter("dlock_revoked", "Tasks that were revoked while they waited")
    says = "was revoked while it waited for {key!r}"


@dataclass(frozen=True, slots=True)
class DeadLettered(Event):
    """The message is a dead letter, for the reason given."""

    key: str
    cause: str

    level, after = WARNING, State.DEAD
    counts = counter("dlock_dead_lettered", "Messages that became dead letters")
    hint = "it is no longer a dead letter"
    says = "became a dead letter at {key!r}: {cause}"


@dataclass(frozen=True, slots=True)
class Discarded(Event):
    """The person ``by`` discarded the task's dead letter: it does not run."""

    key: str
    by: str

    level, counts, after = INFO, None, State.DISCARDED
    says = "was discarded at {key!r}, by {by}"


@dataclass(frozen=True, slots=True)
class Skipped(Event):
    """The task did not run, because ``holder`` has the key, or for the ``reason`` given."""

    key: str
    holder: str | None
    reason: str | None = None
    by: str = ""

    level, after = INFO, State.SKIPPED
    counts = counter("dlock_skipped", "Tasks that were skipped because their lock was held")

    def sentence(self) -> str:
        why = f"{self.key!r} {_why_refused(self.holder, self.by)}"
        return f"was skipped: {short(self.reason) if self.reason else why}"


@dataclass(frozen=True, slots=True)
class Deduplicated(Event):
    """A call of a unique task was answered with ``living``, another one that does the same.

    ``claim`` is the name of the unique claim. The call was not published, or it was ``published``
    because its caller or a canvas depends on its id, and its task ends without the body.
    """

    claim: str
    living: str
    published: bool = False

    level, after = INFO, State.SKIPPED
    counts = counter("dlock_deduplicated", "Calls of unique tasks that were duplicates")

    def sentence(self) -> str:
        lives = f"{self.living}, which lives under the unique claim {self.claim!r}"
        if self.published:
            return f"was found to be a duplicate of {lives}: it does not run"
        return f"was not published: the call was answered with {lives}"


@dataclass(frozen=True, slots=True)
class Debounced(Event):
    """A call waits at ``key`` until no newer one has come for a while, as the task ``living``.

    That is its own, if none waited before.
    """

    key: str
    living: str

    level, after, hint = INFO, State.WAITING, _UNKNOWN_END
    counts = counter("dlock_debounced", "Calls of debounced tasks that wait, or replace another")

    def sentence(self) -> str:
        own = self.living == self.subject.task_id
        has_it = "" if own else f": {self.living} has its message"
        return f"was debounced at {self.key!r}{has_it}"

    def state(self) -> State | None:
        return self.after if self.living == self.subject.task_id else State.SKIPPED


@dataclass(frozen=True, slots=True)
class TimedOut(Event):
    """The task gave up after ``waited`` seconds."""

    key: str
    waited: float

    level, after = DEBUG, State.FAILED
    counts = counter("dlock_timed_out", "Tasks that waited too long and gave up")

    def sentence(self) -> str:
        return f"gave up waiting for {self.key!r} after {seconds(self.waited)}"

    def measured(self) -> Sequence[Measurement]:
        return (*Event.measured(self), (WAIT, self.waited))


#: Why the keys were released, and what has become of the task.
_OUTCOMES: Mapping[str, tuple[str, State]] = {
    Outcome.DONE: ("it had ended", State.DONE),
    Outcome.FAILED: ("it had failed for good", State.FAILED),
    Outcome.OVER: (
        "its delivery ended; the task goes on elsewhere or not at all",
        State.RESCHEDULED,
    ),
    Outcome.REPEAT: ("its lock was lost, and it runs again", State.RESCHEDULED),
    Outcome.ABANDONED: ("its run was lost", State.UNKNOWN),
    Outcome.UNUSED: ("its message went back to the broker", State.RESCHEDULED),
}


@dataclass(frozen=True, slots=True)
class Released(Event):
    """The keys were released after ``held`` seconds."""

    keys: tuple[str, ...]
    outcome: str
    held: float

    level, counts, after = DEBUG, None, State.DONE

    def sentence(self) -> str:
        ended, _ = _OUTCOMES.get(self.outcome, (self.outcome, None))
        return f"released {self.keys[0]!r} after {seconds(self.held)}: {ended}"

    def measured(self) -> Sequence[Measurement]:
        return ((HOLD, self.held),)

    def state(self) -> State:
        _, state = _OUTCOMES.get(self.outcome, ("", State.UNKNOWN))
        return state


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The lock is gone, or can no longer be trusted, while its body runs.

    That is as it should be where it was given up for a ``newer`` task.
    """

    key: str
    reason: str
    newer: str | None = None

    level, after, besides = WARNING, State.UNKNOWN, _ANY
    counts = counter("dlock_lost", "Locks that were lost while their body ran")
    hint = (
        "it is not known how it ended: its body may still run without the lock, or its worker "
        "is gone"
    )

    def sentence(self) -> str:
        intended = "" if self.newer is None else " as intended"
        return f"lost its lock on {self.key!r}{intended}: {short(self.reason)}"

    def log_level(self) -> int:
        return self.level if self.newer is None else INFO

    def measured(self) -> Sequence[Measurement]:
        return Event.measured(self) if self.newer is None else ()


@dataclass(frozen=True, slots=True)
class Uncertain(Event):
    """The store has not renewed the lease in time; the lock is trusted for ``left`` more seconds.

    It is then :class:`Confirmed`, :class:`Released` or :class:`Lost`.
    """

    key: str
    left: float

    level, counts, after = INFO, None, None

    def sentence(self) -> str:
        return (
            f"was uncertain of its lock on {self.key!r}, which was not renewed in time, for the "
            f"next {seconds(self.left)} at most"
        )


@dataclass(frozen=True, slots=True)
class Confirmed(Event):
    """The store has renewed the lease of a lock that was uncertain."""

    key: str

    level, counts, after = INFO, None, None
    says = "was certain of its lock on {key!r} again"


@dataclass(frozen=True, slots=True)
class StaleRejected(Event):
    """A late write was refused: the resource had seen a newer token."""

    resource: str
    mine: int

    level, after, besides = WARNING, None, _ANY
    counts = counter("dlock_stale_rejected", "Late writes that the fence refused")
    says = "was refused a late write to {resource!r} with token {mine}"


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """A duplicate was dropped: its task is ``done`` or ``waiting`` already.

    One that is known to be ``repeated`` was redelivered by the broker, or published again by this
    library. Any other may have been published on purpose under the id of a finished task.
    """

    key: str
    reason: str
    repeated: bool = True

    level, after, besides = INFO, State.DROPPED, _ANY - {State.DROPPED}
    counts = counter("dlock_dropped", "Duplicates of messages that were dropped")
    says = "had a duplicate dropped at {key!r}, because it was already {reason}"

    def log_level(self) -> int:
        return WARNING if self.reason == "done" and not self.repeated else self.level


@dataclass(frozen=True, slots=True)
class Unavailable(Event):
    """The store did not answer."""

    error: str

    level, after, besides = DEBUG, State.UNKNOWN, _ANY
    counts = counter(
        "dlock_unavailable", "Times that the lock store did not answer, or refused a write"
    )

    def sentence(self) -> str:
        return f"got no answer from the lock store: {short(self.error)}"


@dataclass(frozen=True, slots=True)
class TooLarge(Event):
    """The message, of ``size`` bytes, cannot wait in the lock store; it waits in the broker."""

    size: int

    level, after, besides = WARNING, State.UNKNOWN, _ANY
    counts = counter("dlock_too_large", "Messages too large to be parked in the lock store")
    says = "was too large to be parked, with {size} bytes: it waits in the broker"


@dataclass(frozen=True, slots=True)
class Unreserved(Event):
    """``key``, which was kept for the task, is free for others: it would have waited for
    ``another`` one, which is kept for a task that waits for ``key``.
    """

    key: str
    another: str

    level, counts, after, besides = WARNING, None, None, _ANY
    says = (
        "no longer has {key!r} reserved: it waits for {another!r}, which is reserved for a task "
        "that waits for {key!r}"
    )


@dataclass(frozen=True, slots=True)
class LeftToOthers(Event):
    """The task was woken and waits on, for a worker at its own ``broker``, which is not ours.

    Of each message a process tells this once.
    """

    key: str
    broker: str

    level, after, besides = INFO, State.WAITING, _ANY - {State.UNKNOWN}
    counts = counter(
        "dlock_left_to_others",
        "Messages of another broker, left in the lock store for its workers",
    )
    hint = "it is no longer in the lock store, so a worker at that broker has taken it"
    says = "was woken for {key!r} and left to the workers at its broker {broker}"


@dataclass(frozen=True, slots=True)
class Rescheduled(Event):
    """The message was published again, to be delivered in ``countdown`` seconds."""

    reason: str
    countdown: float

    level, after, besides = INFO, State.RESCHEDULED, _ANY - {State.RESCHEDULED}
    counts = counter("dlock_rescheduled", "Messages that were published again")

    def sentence(self) -> str:
        return f"was rescheduled by {seconds(self.countdown)}: {short(self.reason)}"


@dataclass(frozen=True, slots=True)
class TickSent(Event):
    """Beat has sent the task of its entry ``subject.label`` for the instant ``due`` (ISO, UTC)."""

    due: str

    level, after = DEBUG, None
    counts = counter("dlock_beat_sent", "Ticks that beat has sent", of_beat=True)
    says = "sent the tick of {due}"


@dataclass(frozen=True, slots=True)
class TickRepeated(Event):
    """A beat that led before may have sent this tick or not, so it is sent, under the same id."""

    due: str

    level, after = WARNING, None
    counts = counter("dlock_beat_repeated", "Ticks that may have been sent twice", of_beat=True)
    says = "sent the tick of {due} again: a previous beat may have sent it or not"


@dataclass(frozen=True, slots=True)
class TicksMissed(Event):
    """The ticks from ``first`` on and before ``until`` are missed: overdue, and never sent."""

    first: str
    until: str

    level, after = WARNING, None
    counts = counter(
        "dlock_beat_missed", "Times that ticks were missed: overdue, and never sent", of_beat=True
    )
    says = "missed the ticks from {first} on and before {until}"


@dataclass(frozen=True, slots=True)
class Missing(Event):
    """So many ``events`` are not in the history, which says so itself: no sink is told."""

    events: int

    level, counts, after = INFO, None, None

    def sentence(self) -> str:
        return f"{count(self.events, 'event')} could not be stored"


#: The kinds of events by their names. A class with slots is made twice, and the second one counts.
EVENTS = {kind.__name__: kind for kind in Event.__subclasses__()}

#: All that events measure.
MEASURES = tuple(
    dict.fromkeys((*SHARED, *(kind.counts for kind in EVENTS.values() if kind.counts)))
)
