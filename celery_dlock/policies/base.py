"""A policy decides and never acts; the task layer carries the decision out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """Who has the key: its task id, since when (seconds since 1970), seconds left of its lease.

    ``who`` is its task and process, for people.
    """

    task_id: str
    since: float
    seconds_left: float
    who: str = ""


@dataclass(frozen=True, slots=True)
class Contention:
    """What a policy is told about a refusal.

    ``attempt`` counts the earlier refusals, and ``waited`` the seconds since the first one, without
    times in which no worker ran or, before this delivery, the key was on hold. ``holder`` is
    ``None`` if the key is only reserved, cooling down or on hold. In the last two cases
    ``opens_in`` says for how many seconds, and ``hold`` names who keeps the key closed, and why.
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

    A policy that reschedules should also have a method ``patience(attempt) -> seconds``: for how
    long the task keeps its place in the queue of the key.
    """

    def decide(self, contention: Contention) -> Decision:
        """Say what happens to the message; called once for each refusal."""
        ...


@dataclass(frozen=True, slots=True)
class Queueing:
    """What a policy asks of the key's queue in the store.

    ``max_waiting`` messages at most (``None``: no end); with ``drop_oldest`` the first of them
    makes room. After ``max_wait`` seconds a message is woken to time out. With ``at_publish`` it
    takes its place when it is published, and so does a retry. If it is ``ordered`` nobody overtakes
    it, and a failure for good ``shuts`` the key if asked to. With ``keep`` the store has it while
    its body runs too. With ``replaces_running`` the task that runs is asked to stop for a newer one
    of its name.
    """

    max_waiting: int | None
    drop_oldest: bool
    max_wait: float | None
    at_publish: bool = False
    ordered: bool = False
    shuts: bool = False
    keep: bool = False
    replaces_running: bool = False


def queueing(policy: Policy) -> Queueing | None:
    """What *policy* asks of the queue, if its messages wait in the store at all."""
    ask = getattr(policy, "queueing", None)
    demands: Queueing | None = ask() if ask is not None else None
    return demands


def replaces_running(policy: Policy) -> bool:
    """Whether a task with *policy* is asked to stop for a newer one."""
    demands = queueing(policy)
    return demands is not None and demands.replaces_running


def patience(policy: Policy, attempt: int) -> float:
    """Seconds for which *policy* wants its place kept after that many refusals; 0 for none."""
    keeps = getattr(policy, "patience", None)
    return float(keeps(attempt)) if keeps is not None else 0.0
