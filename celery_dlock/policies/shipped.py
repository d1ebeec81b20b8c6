"""The policies, each a pure decision, and the names that ``on_contention=`` takes for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from celery_dlock.core.backoff import Backoff, FullJitter
from celery_dlock.core.checks import did_you_mean, duration, quoted
from celery_dlock.errors import ConfigurationError, LockContended, LockTimeout
from celery_dlock.policies.base import (
    Complete,
    Contention,
    Decision,
    GiveUp,
    HolderInfo,
    Policy,
    Queueing,
    RunLater,
    WaitHere,
)

#: How much longer a place is kept than the next attempt can take to be due: delivery takes time.
GRACE = 5.0

#: Seconds: some brokers deliver again what a worker keeps for much longer.
LONGEST_COUNTDOWN = 300.0

OVERFLOWS = ("fail", "drop_oldest", "drop_newest")

#: For a message that the store cannot take: it waits in the broker instead.
_INSTEAD = FullJitter()


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail with :exc:`~celery_dlock.LockContended`, which names the holder and the seconds left."""

    def decide(self, contention: Contention) -> Decision:
        holder = contention.holder
        if holder is None:
            return GiveUp(_closed(contention))
        key, left = contention.key, holder.seconds_left
        return GiveUp(LockContended(key, holder.task_id, left, by=holder.who))


@dataclass(frozen=True, slots=True)
class Skip:
    """Complete at once with a result that names the key, the holder, and since when it holds it.

    If it has none, because the key is cooling down or on hold, the result has the reason instead.

    *then* is for a chain. ``"stop"`` ends the chain: its later tasks do not run, and complete with
    the same result. ``"continue"`` goes on with the result of the skip. A chord counts a skipped
    task as done in both cases.

    A task of which a run has failed, or lost its lock, is not skipped. It comes back as with
    :class:`Reschedule`.
    """

    then: Literal["stop", "continue"] = "stop"

    def __post_init__(self) -> None:
        if self.then not in ("stop", "continue"):
            raise ConfigurationError(f'then= is "stop" or "continue", got {quoted(self.then)}')

    def decide(self, contention: Contention) -> Decision:
        reason = _closed(contention).why if contention.opens_in else None
        return Complete(skipped(contention.key, contention.holder, reason), self.then)


def _closed(contention: Contention) -> LockContended:
    """Nobody has the key, and nobody gets it."""
    return LockContended(contention.key, None, contention.opens_in, contention.hold)


def skipped(key: str, holder: HolderInfo | None, reason: str | None = None) -> dict[str, Any]:
    """The result of a task that does not run; *reason* where it is another than the holder."""
    result = {
        "skipped": True,
        "key": key,
        "holder": holder.task_id if holder else None,
        "since": holder.since if holder else None,
    }
    return result if reason is None else {**result, "reason": reason}


@dataclass(frozen=True, slots=True)
class Reschedule:
    """Publish the message again after *backoff*, until *max_attempts* or *max_wait* (seconds).

    If the key is cooling down or on hold, the task comes back when that is over, or after five
    minutes to ask again. The task keeps its id, its ``retries``, and its place in a canvas.
    ``None`` means no limit. At the limit the task fails with :exc:`~celery_dlock.LockTimeout`.
    """

    backoff: Backoff = field(default_factory=FullJitter)
    max_attempts: int | None = None
    max_wait: float | None = 3600.0

    def __post_init__(self) -> None:
        if isinstance(self.backoff, type) or not isinstance(self.backoff, Backoff):
            example = "an object such as FullJitter(base=1, cap=60)"
            raise ConfigurationError(f"backoff takes {example}, got {quoted(self.backoff)}")
        attempts = self.max_attempts
        if attempts is not None and (type(attempts) is not int or attempts < 0):
            raise ConfigurationError(f"max_attempts is a number from 0 up, got {quoted(attempts)}")
        if self.max_wait is not None:
            duration("max_wait", self.max_wait, zero=True)

    def decide(self, contention: Contention) -> Decision:
        too_often = self.max_attempts is not None and contention.attempt >= self.max_attempts
        too_long = self.max_wait is not None and contention.waited >= self.max_wait
        if too_often or too_long:
            return GiveUp(timed_out(contention, self, "max_wait" if too_long else "max_attempts"))
        opens_in = min(contention.opens_in, LONGEST_COUNTDOWN)
        return RunLater(opens_in + self.backoff.delay(contention.attempt, random.random))

    def patience(self, attempt: int) -> float:
        """A place is kept until the next attempt must have come."""
        return self.backoff.ceiling(attempt) + GRACE


#: For a task that has begun, whatever its policy does with others: it is tried again, and fails if
#: that takes too long.
COMES_BACK = Reschedule()


def limit_of(policy: object, option: str) -> str:
    """The limit *option* of *policy* as an error names it: ``max_wait=3600 of Queue``."""
    limit = getattr(policy, option, None)
    return "" if limit is None else f"{option}={limit:.12g} of {type(policy).__name__}"


def timed_out(contention: Contention, policy: Policy, option: str) -> LockTimeout:
    """The error of a task that has waited for long enough, by that *option* of its *policy*."""
    holder = contention.holder
    return LockTimeout(
        contention.key,
        holder.task_id if holder else None,
        holder.seconds_left if holder else contention.opens_in,
        contention.waited,
        contention.hold,
        holder.who if holder else "",
        limit_of(policy, option),
    )


@dataclass(frozen=True, slots=True)
class Wait:
    """Keep asking for *timeout* seconds, then fail with :exc:`~celery_dlock.LockTimeout`.

    Use it for locks that are held for moments, because the slot stays occupied. If all slots wait
    for a key whose holder waits for a slot, that is a deadlock until the timeout.
    """

    timeout: float = 5.0

    def __post_init__(self) -> None:
        duration("timeout", self.timeout, zero=True)

    def decide(self, contention: Contention) -> Decision:
        left = self.timeout - contention.waited
        return WaitHere(left) if left > 0 else GiveUp(timed_out(contention, self, "timeout"))

    def patience(self, attempt: int) -> float:
        """A place is kept from one question to the next, which are fractions of a second apart."""
        return 1.0


@dataclass(frozen=True, slots=True)
class _InTheStore:
    """What waits in the lock store: how many messages, what happens to one more, and how long."""

    max_waiting: int | None = None
    overflow: Literal["fail", "drop_oldest", "drop_newest"] = "fail"
    max_wait: float | None = 86400.0

    def __post_init__(self) -> None:
        if self.max_waiting is not None and (
            type(self.max_waiting) is not int or self.max_waiting < 1
        ):
            raise ConfigurationError(
                f"max_waiting is a number from 1 up, got {quoted(self.max_waiting)}"
            )
        if self.overflow not in OVERFLOWS:
            known = ", ".join(OVERFLOWS)
            raise ConfigurationError(f"overflow is one of {known}, got {quoted(self.overflow)}")
        if self.max_wait is not None:
            duration("max_wait", self.max_wait)

    def queueing(self) -> Queueing:
        """What the store needs to know."""
        return Queueing(self.max_waiting, self.overflow == "drop_oldest", self.max_wait)

    def decide(self, contention: Contention) -> Decision:
        """Asked only for a message that the store does not take: full, or too large for it."""
        if not contention.full:
            if self.max_wait is not None and contention.waited >= self.max_wait:
                return GiveUp(timed_out(contention, self, "max_wait"))
            return RunLater(_INSTEAD.delay(contention.attempt, random.random))
        if self.overflow == "drop_newest":
            reason = f"{contention.waiting} messages wait for the key already"
            return Complete(skipped(contention.key, contention.holder, reason))
        return Fail().decide(contention)

    def patience(self, attempt: int) -> float:
        """For a message that waits in the broker instead, as with :class:`Reschedule`."""
        return _INSTEAD.ceiling(attempt) + GRACE


@dataclass(frozen=True, slots=True)
class Queue(_InTheStore):
    """Wait in the key's queue, for at most *max_wait* seconds (``None``: no limit).

    The message is parked in the lock store, first in, first out. It leaves the worker at once and
    needs no polling. When the key is released, the worker that releases it publishes the message
    again.

    At most *max_waiting* messages wait for a key. *overflow* says what happens then: the new task
    fails (``"fail"``), the new task ends as skipped (``"drop_newest"``), or the first waiting call
    of the same task does (``"drop_oldest"``). With the first two a retry waits all the same. A task
    that waited too long fails with :exc:`~celery_dlock.LockTimeout`.

    With *keep* the store keeps the message until the task has ended, so that a worker that dies
    loses nothing on any broker. Then a key runs at most 32 tasks at once, also with a larger
    *limit*.
    """

    keep: bool = False

    def __post_init__(self) -> None:
        _InTheStore.__post_init__(self)
        if not isinstance(self.keep, bool):
            raise ConfigurationError(f"keep is True or False, got {quoted(self.keep)}")

    def queueing(self) -> Queueing:
        """What the store needs to know."""
        return replace(_InTheStore.queueing(self), keep=self.keep)


@dataclass(frozen=True, slots=True)
class Ordered(_InTheStore):
    """The tasks of a key run in the order in which they were called.

    That holds over all publishers, broker queues and workers, through retries with any countdown,
    killed workers, and restarts of the broker and the store. A task takes its place when it is
    published, and the lock store keeps its message until it has ended; its retry is the next to
    run, and waits in the store until it is due. With several keys it is the order of the calls with
    the same keys. *max_waiting*, *overflow* and *max_wait* are those of :class:`Queue`.

    When a task fails for good the next one runs, or with *on_failure* ``"hold"`` none does: the
    first key of the task is put on hold, and its message is a dead letter. To replay that puts it
    first again.

    It needs the definition of the task, and the lock store, where the task is published. A call
    with a countdown, and one by its name only, take their places when they come to a worker.
    """

    on_failure: Literal["next", "hold"] = "next"

    def __post_init__(self) -> None:
        _InTheStore.__post_init__(self)
        if self.on_failure not in ("next", "hold"):
            raise ConfigurationError(
                f'on_failure is "next" or "hold", got {quoted(self.on_failure)}'
            )

    def queueing(self) -> Queueing:
        """What the store needs to know."""
        shuts = self.on_failure == "hold"
        demands = _InTheStore.queueing(self)
        return replace(demands, at_publish=True, ordered=True, shuts=shuts, keep=True)


@dataclass(frozen=True, slots=True)
class Replace:
    """One runs, one waits: the newest call, as the lock store counts them.

    A task takes its place when it is published. The call that waits ends as skipped, and so does
    the retry of an older call: no call undoes a newer one. A task whose turn has come runs although
    a newer one waits. Other tasks that wait for the key stay.

    With *running* the newest call also replaces the running one of the same task: the lease of that
    one is lost, and its body can stop. It ends as skipped when it has stopped. The newest runs
    then, or when the lease has expired. This needs a task with one key that it holds alone.

    It needs the definition of the task, and the lock store, where the task is published.
    """

    max_wait: float | None = 86400.0
    running: bool = False

    def __post_init__(self) -> None:
        if self.max_wait is not None:
            duration("max_wait", self.max_wait)
        if not isinstance(self.running, bool):
            raise ConfigurationError(f"running is True or False, got {quoted(self.running)}")

    def queueing(self) -> Queueing:
        """A queue of one."""
        return Queueing(
            1,
            drop_oldest=True,
            max_wait=self.max_wait,
            at_publish=True,
            keep=True,
            replaces_running=self.running,
        )

    def decide(self, contention: Contention) -> Decision:
        """Asked only for a message that the store cannot take."""
        return Queue(max_wait=self.max_wait).decide(contention)

    def patience(self, attempt: int) -> float:
        return Queue().patience(attempt)


#: The names of the policies, for type checkers.
PolicyName = Literal["reschedule", "skip", "fail", "wait", "queue", "ordered", "replace"]

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "reschedule": Reschedule,
    "skip": Skip,
    "fail": Fail,
    "wait": Wait,
    "queue": Queue,
    "ordered": Ordered,
    "replace": Replace,
}


def policy_named(policy: str | Policy) -> Policy:
    """The policy of that name with its defaults; an object that decides is taken as it is.

    Raises :exc:`~celery_dlock.ConfigurationError` for anything else, with the nearest name.
    """
    if isinstance(policy, str):
        if policy in POLICIES:
            return POLICIES[policy]()
        hint = did_you_mean(policy, POLICIES)
        raise ConfigurationError(f"on_contention={quoted(policy)} is no policy: {hint}")
    if isinstance(policy, type) or not isinstance(policy, Policy):
        what = "a name or an object with decide(contention)"
        add = f"; add (): {policy.__name__}()" if isinstance(policy, type) else ""
        raise ConfigurationError(f"on_contention= takes {what}, got {quoted(policy)}{add}")
    return policy
