"""What happened to a lock, told to whoever listens.

One closed union of small values. A sink is a callable that takes one of them; it runs in the
thread where the thing happened and can never raise into a task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

logger = logging.getLogger("celery_dlock")


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose lock: the task, and the template its key was rendered from (for metric labels)."""

    task_id: str
    task_name: str
    label: str


@dataclass(frozen=True, slots=True)
class Acquired:
    """The keys were taken. ``took`` is in seconds, the round trips included."""

    subject: Subject
    keys: tuple[str, ...]
    tokens: tuple[int, ...]
    took: float


@dataclass(frozen=True, slots=True)
class Contended:
    """``key`` is held by another; ``attempt`` counts from 0, ``waited`` is in seconds."""

    subject: Subject
    key: str
    holder: str | None
    attempt: int
    waited: float


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """The message was published again, to be delivered in ``countdown`` seconds."""

    subject: Subject
    reason: str
    countdown: float


@dataclass(frozen=True, slots=True)
class Parked:
    """The message waits in the queue of ``key``; it has left the worker."""

    subject: Subject
    key: str


@dataclass(frozen=True, slots=True)
class Woken:
    """The message was published again: its turn has come, or it ends for the reason given."""

    subject: Subject
    key: str
    ending: str | None


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
class Buried:
    """The message is dead, for the reason given, and kept on the list of the dead."""

    subject: Subject
    key: str
    cause: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """The task did not run, because ``holder`` has the key."""

    subject: Subject
    key: str
    holder: str | None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A duplicate was dropped: its task is ``done`` or ``waiting`` already."""

    subject: Subject
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The task gave up after ``waited`` seconds."""

    subject: Subject
    key: str
    waited: float


@dataclass(frozen=True, slots=True)
class Released:
    """The keys were given back after ``held`` seconds."""

    subject: Subject
    keys: tuple[str, ...]
    outcome: str
    held: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The lock is gone, or can no longer be trusted, while its body runs."""

    subject: Subject
    key: str
    reason: str


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


Event = (
    Acquired
    | Contended
    | Rescheduled
    | Parked
    | Woken
    | TooLarge
    | Revoked
    | Buried
    | Skipped
    | Dropped
    | TimedOut
    | Released
    | Lost
    | StaleRejected
    | Unavailable
)
Sink = Callable[[Event], None]


def log(event: Event) -> None:
    """The sink that is always there: what went wrong as a warning, all else for debugging."""
    wrong = isinstance(event, TimedOut | Lost | StaleRejected | Unavailable | Buried | TooLarge)
    logger.log(logging.WARNING if wrong else logging.DEBUG, "%s", event)


class Sinks:
    """Tells every sink; one that fails is logged and the others still hear.

    *through* are errors that only happen to strike inside a sink: a time limit is nobody's defect.
    """

    def __init__(
        self, sinks: Sequence[Sink] = (), through: tuple[type[Exception], ...] = ()
    ) -> None:
        self._sinks = (log, *sinks)
        self._through = through

    def emit(self, event: Event) -> None:
        for sink in self._sinks:
            try:
                sink(event)
            except self._through:
                raise
            except Exception:
                logger.exception("the sink %r failed on %r", sink, event)
