"""What an event is: a small value, whose class says all that is to be known of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Self

from celery_dlock.core.measures import Measure, Measurement

#: The name of the task in events about the beat that leads. It holds its key for as long as it
#: leads, so a long hold is no danger.
LEAD = "celery beat"


class State(StrEnum):
    """What has become of a task, in one word."""

    RUNNING = "running"
    WAITING = "waiting"
    WOKEN = "woken"
    RESCHEDULED = "rescheduled"
    SKIPPED = "skipped"
    DROPPED = "dropped"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    DISCARDED = "discarded"
    REVOKED = "revoked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose lock: the task, and the template its key was rendered from.

    ``carried`` is what sinks gave its message to carry when it was published again, or parked.
    """

    task_id: str
    task_name: str
    label: str
    carried: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)


class Labels(NamedTuple):
    """The labels of all metrics, by which tasks are told apart. There are too many keys for that,
    and they say too much.
    """

    task: str
    template: str

    @classmethod
    def of(cls, subject: Subject) -> Self:
        return cls(subject.task_name, subject.label)


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to the lock of *subject*. Each kind of event says:

    * ``level`` of its line in the log: INFO for what became of a delivery, as Celery's own lines
      are, and for a lock that is uncertain; WARNING for what went wrong; DEBUG for what only
      programs count, what is logged elsewhere (a task that times out fails, and Celery logs that)
      and what is logged once a worker (that the store is unavailable)
    * what it ``says``, after the name of the task, such as ``took 'order:42' with token 17``. The
      log, the commands and the page say the same, and what others sent stays plain text
    * what it ``counts``, by one
    * what has become of the task ``after`` it, if it decides that. Where the lock store answers and
      knows nothing of one that runs or waits, that is unknown. ``hint`` is what it means, for
      people. It is also told ``besides`` these states, if something else has decided them; the
      first of the classes comes first

    Where that depends on the event, the class has the method instead.
    """

    subject: Subject

    level: ClassVar[int]
    says: ClassVar[str]
    counts: ClassVar[Measure | None]
    after: ClassVar[State | None]
    hint: ClassVar[str | None] = None
    besides: ClassVar[frozenset[State]] = frozenset()

    def log_level(self) -> int:
        return self.level

    def sentence(self) -> str:
        return self.says.format_map(plain(self))

    def measured(self) -> Sequence[Measurement]:
        """What it adds to which measure; a gauge is set to it."""
        return () if self.counts is None else ((self.counts, 1),)

    def state(self) -> State | None:
        return self.after


Sink = Callable[[Event], None]


def plain(event: Event) -> dict[str, Any]:
    """*event* in one level of names and plain values, the subject's among them, for programs."""
    subject = event.subject
    who = {name: getattr(subject, name) for name in ("task_id", "task_name", "label")}
    rest = {field.name: getattr(event, field.name) for field in fields(event)}
    del rest["subject"]
    return {"event": type(event).__name__, **who, **rest}
