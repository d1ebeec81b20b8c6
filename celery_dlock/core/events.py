"""What happened to a lock, told to whoever listens.

One closed union of small values. A sink is a callable that takes one of them; it runs in the
thread where the thing happened and can never raise into a task. Labels of metrics are made from the
subject's ``task_name`` and ``label`` only: there are too many keys, and they say too much. A
``holder`` is the id of a task, and ``by`` its name, its id and its process, for people; ``hold``
says which person keeps the key closed, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: The name of the task in events about the beat that leads. It holds its key for as long as it
#: leads, so a long hold is no danger.
LEAD = "celery beat"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose lock: the task, and the template its key was rendered from (for metric labels).

    ``carried`` is what sinks gave its message to carry when it was published again, or parked.
    """

    task_id: str
    task_name: str
    label: str
    carried: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)


@dataclass(frozen=True, slots=True)
class Acquired:
    """The keys were taken, under a lease of ``ttl`` seconds; a key that is only read has token 0.

    ``took`` is how long this delivery asked for them, round trips included; ``waited`` how long ago
    the task was first refused, or took its place as it was published; ``since_woken`` how long ago
    it was woken in the queue, ``None`` if it was not. All are in seconds, and but for ``took``
    they compare the clocks of two hosts.
    """

    subject: Subject
    keys: tuple[str, ...]
    tokens: tuple[int, ...]
    took: float
    ttl: float
    waited: float = 0.0
    since_woken: float | None = None


@dataclass(frozen=True, slots=True)
class Contended:
    """``key`` is held by another; ``attempt`` counts from 0, ``waited`` is in seconds."""

    subject: Subject
    key: str
    holder: str | None
    attempt: int
    waited: float
    hold: str = ""


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """The message was published again, to be delivered in ``countdown`` seconds."""

    subject: Subject
    reason: str
    countdown: float


@dataclass(frozen=True, slots=True)
class Parked:
    """The message waits in the queue of ``key``; it has left the worker.

    It was not ``refused`` if it took its place as it was published.
    """

    subject: Subject
    key: str
    refused: bool
    holder: str | None = None
    by: str = ""
    hold: str = ""


@dataclass(frozen=True, slots=True)
class Woken:
    """The message was published again: its turn has come, or it ends for the reason given.

    It was sent to *queue*, or by that routing key, and woken in vain so often *before*.
    """

    subject: Subject
    key: str
    ending: str | None
    queue: str = ""
    before: int = 0


@dataclass(frozen=True, slots=True)
class Unreserved:
    """``key``, which was kept for the task, is free for others: it would have waited for
    ``another`` one, which is kept for a task that waits for ``key``.
    """

    subject: Subject
    key: str
    another: str


@dataclass(frozen=True, slots=True)
class LeftToOthers:
    """The task was woken and waits on, for a worker at its own ``broker``, which is not ours.

    Of each message a process tells this once.
    """

    subject: Subject
    key: str
    broker: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The message, of ``size`` bytes, cannot wait in the lock store; it waits in the broker."""

    subject: Subject
    size: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """The task was revoked while it waited for ``key``; its result says so."""

    subject: Subject
    key: str


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The message is a dead letter, for the reason given."""

    subject: Subject
    key: str
    cause: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """The person ``by`` discarded the task's dead letter: it does not run."""

    subject: Subject
    key: str
    by: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """The task did not run, because ``holder`` has the key, or for the ``reason`` that is said."""

    subject: Subject
    key: str
    holder: str | None
    reason: str | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A duplicate was dropped: its task is ``done`` or ``waiting`` already.

    One that is known to be ``repeated`` was redelivered by the broker, or published again by this
    library. Any other may have been published on purpose under the id of a finished task.
    """

    subject: Subject
    key: str
    reason: str
    repeated: bool = True


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """A call of a unique task was answered with ``living``, another one that does the same.

    ``claim`` is the name of the unique claim. The call was not published, or it was ``published``
    because its caller or a canvas depends on its id, and its task ends without the body.
    """

    subject: Subject
    claim: str
    living: str
    published: bool = False


@dataclass(frozen=True, slots=True)
class Debounced:
    """A call waits at ``key`` until no newer one has come for a while, as the task ``living``.

    That is its own, if none waited before.
    """

    subject: Subject
    key: str
    living: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The task gave up after ``waited`` seconds."""

    subject: Subject
    key: str
    waited: float


@dataclass(frozen=True, slots=True)
class Released:
    """The keys were released after ``held`` seconds."""

    subject: Subject
    keys: tuple[str, ...]
    outcome: str
    held: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The lock is gone, or can no longer be trusted, while its body runs.

    That is as it should be where it was given up for a ``newer`` task.
    """

    subject: Subject
    key: str
    reason: str
    newer: str | None = None


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The store has not renewed the lease in time; the lock is trusted for ``left`` more seconds.

    It is then :class:`Confirmed`, :class:`Released` or :class:`Lost`.
    """

    subject: Subject
    key: str
    left: float


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The store has renewed the lease of a lock that was uncertain."""

    subject: Subject
    key: str


@dataclass(frozen=True, slots=True)
class StaleRejected:
    """A late write was refused: the resource had seen a newer token."""

    subject: Subject
    resource: str
    mine: int


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store did not answer."""

    subject: Subject
    error: str


@dataclass(frozen=True, slots=True)
class TickSent:
    """Beat has sent the task of its entry ``subject.label`` for the instant ``due`` (ISO, UTC)."""

    subject: Subject
    due: str


@dataclass(frozen=True, slots=True)
class TickRepeated:
    """A beat that led before may have sent this tick or not, so it is sent, under the same id."""

    subject: Subject
    due: str


@dataclass(frozen=True, slots=True)
class TicksMissed:
    """The ticks from ``first`` on and before ``until`` are missed: overdue, and never sent."""

    subject: Subject
    first: str
    until: str


Event = (
    Acquired
    | Contended
    | Rescheduled
    | Parked
    | Woken
    | Unreserved
    | LeftToOthers
    | TooLarge
    | Revoked
    | DeadLettered
    | Discarded
    | Skipped
    | Dropped
    | Deduplicated
    | Debounced
    | TimedOut
    | Released
    | Lost
    | Uncertain
    | Confirmed
    | StaleRejected
    | Unavailable
    | TickSent
    | TickRepeated
    | TicksMissed
)
Sink = Callable[[Event], None]


def plain(event: Event) -> dict[str, Any]:
    """*event* in one level of names and plain values, the subject's among them, for programs."""
    subject = event.subject
    who = {name: getattr(subject, name) for name in ("task_id", "task_name", "label")}
    rest = {field.name: getattr(event, field.name) for field in fields(event)}
    del rest["subject"]
    return {"event": type(event).__name__, **who, **rest}
