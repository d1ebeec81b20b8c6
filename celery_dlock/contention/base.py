"""A policy decides and never acts; the task layer carries the decision out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """Who has the key: its task id, since when (seconds since 1970), seconds left of its lease."""

    task_id: str
    since: float
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Contention:
    """What a policy may know.

    ``attempt`` counts the refusals before this one, ``waited`` the seconds since the first of
    them in which there were workers; ``holder`` is ``None`` when the key is only reserved, or
    cools down: then ``opens_in`` says for how many seconds. So it does when a person keeps the key
    closed: ``hold`` says who and why, and ``waited`` counts none of that before this delivery.
    ``waiting`` counts parked messages, and ``full`` says that no more of them may wait.
    """

    key: str
    task_id: str
    attempt: int
    waited: float
    holder: HolderInfo | None
    waiting: int
    full: bool = False
    opens_in: float = 0.0
    hold: str = ""


@dataclass(frozen=True, slots=True)
class RunLater:
    """Publish the message again, to be delivered in *countdown* seconds."""

    countdown: float


@dataclass(frozen=True, slots=True)
class Complete:
    """Do not run; *result* is the task's result. *then* says what a chain does after it."""

    result: Mapping[str, Any]
    then: Literal["stop", "continue"] = "stop"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail with *error*."""

    error: Exception


@dataclass(frozen=True, slots=True)
class WaitHere:
    """Stay in the worker slot and keep asking for *seconds*, then ask the policy again."""

    seconds: float


Decision = RunLater | Complete | GiveUp | WaitHere


@runtime_checkable
class Policy(Protocol):
    """Any object with ``decide``.

    One that comes back by itself should also say for how long its place against waiting messages
    is to be kept, with a method ``patience(attempt) -> seconds``.
    """

    def decide(self, contention: Contention) -> Decision:
        """Say what happens to the message; called once for each refusal."""
        ...


@dataclass(frozen=True, slots=True)
class Queueing:
    """What a policy asks of the key's queue in the store.

    ``max_waiting`` messages at most (``None``: no end); with ``drop_oldest`` the first of them
    makes room. After ``max_wait`` seconds a message is woken to time out. With ``at_publish`` it
    takes its place when it is published; with ``keep`` the store has it while its body runs too;
    with ``reserve_retries`` the key is kept for a task that retries. With ``replaces_running`` the
    task that runs is asked to stop for a newer one of its name.
    """

    max_waiting: int | None
    drop_oldest: bool
    max_wait: float | None
    at_publish: bool = False
    keep: bool = False
    reserve_retries: bool = False
    replaces_running: bool = False


def queueing(policy: Policy) -> Queueing | None:
    """What *policy* asks of the queue, if its messages wait in the store at all."""
    asks = getattr(policy, "queueing", None)
    found: Queueing | None = asks() if asks is not None else None
    return found


def replaces_running(policy: Policy) -> bool:
    """Whether a task with *policy* is asked to stop for a newer one."""
    asks = queueing(policy)
    return asks is not None and asks.replaces_running


def patience(policy: Policy, attempt: int) -> float:
    """Seconds for which *policy* wants its place kept after that many refusals; 0 for none."""
    keeps = getattr(policy, "patience", None)
    return float(keeps(attempt)) if keeps is not None else 0.0
