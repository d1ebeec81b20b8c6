"""The answer to "why did it not run?": one word, the reasons, and the names in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What has become of a task, in one word."""

    RUNNING = "running"
    WAITING = "waiting"
    CALLED = "called"
    RESCHEDULED = "rescheduled"
    SKIPPED = "skipped"
    DROPPED = "dropped"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    REVOKED = "revoked"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state, the reasons for it, and the keys and the other tasks that they name."""

    state: State
    reasons: tuple[str, ...]
    keys: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
