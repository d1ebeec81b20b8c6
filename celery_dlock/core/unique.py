"""Unique tasks: whether a call is another one of a task that lives, and when its claim ends.

A *unique claim* is one small value that the store keeps under what identifies a call: whose task it
is, and where its message was seen last. It is changed by compare-and-set, so each rule here is a
pure function from the stored claim to the next one. No lock depends on it: a claim that is
forgotten costs a duplicate, which waits for the lock, and never two runs at once.

The claim of a task that is gone must not answer other calls for long. So it is believed for
``GRACE`` after its message was published, and from then on while the lock store shows that the task
runs or waits. A task that the store does not show is published once more under the same id. If the
first message was only late, the second one is a duplicate of a task that is done: the lock store
remembers such a task for as long as the second message may be on its way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Self, get_args

from celery_dlock.core.checks import duration, quoted
from celery_dlock.core.keys import Key
from celery_dlock.core.plain import given
from celery_dlock.core.state import task_id_of
from celery_dlock.errors import ConfigurationError

Until = Literal["done", "start"]

#: Whether the lock store shows the task of a stored claim. A rule asks only where that matters.
Lives = Callable[[], bool]

#: Seconds for which a message that was published is believed to be on its way.
GRACE = 60.0


@dataclass(frozen=True, slots=True)
class Unique:
    """What *unique* means for a task: while one call of it lives, no duplicate call is published.

    A task lives *until* it is ``"done"``, or until its ``"start"``, before the first line of its
    body. It also lives for *period* seconds after it was published. It lives no longer than *ttl*
    seconds after it was published, or a worker last dealt with it.

    Two calls do the same if they have the same arguments, of the same types, and their key, if a
    callable makes it, is the same. *by* changes that: a template or callable, written like a task's
    key, whose value must be the same.

    A duplicate call gets the result of the task that lives, and its ``is_duplicate`` is true. If
    the store is unavailable a call is published all the same.
    """

    until: Until = "done"
    by: Key | None = None
    period: float | None = None
    ttl: float = 86_400.0

    def __post_init__(self) -> None:
        if self.until not in get_args(Until):
            raise ConfigurationError(
                f"until= of a unique task is 'done' or 'start', got {quoted(self.until)}"
            )
        duration("ttl", self.ttl)
        if self.period is not None:
            duration("period", self.period)

    @classmethod
    def named(cls, unique: object) -> Self:
        """*unique* as it is given to a task: one of these, or only until when."""
        if isinstance(unique, cls):
            return unique
        if isinstance(unique, str):
            return cls(until=unique)  # type: ignore[arg-type]  # which is checked
        raise ConfigurationError(
            f"unique= takes 'done', 'start', Unique(…) or Debounce(…), got {quoted(unique)}"
        )


@dataclass(frozen=True, slots=True)
class UniqueClaim:
    """The claim of one task, as it is stored. Instants are seconds since 1970, on hosts' clocks.

    ``task`` is that of :class:`~celery_dlock.core.state.Claim`; ``name`` and ``where`` are for
    people: the task's, and the process that has last had to do with it. Its message was published
    at ``heard``, or is due then; ``key`` is the lock at which the store has it, running or waiting,
    and empty as long as only the broker does. ``acked`` says that the broker has no message any
    more: a task that the store does not show is gone then. It stays until ``period_ends``, also
    when it is ``over``. A call has published its message ``again``, so that two may be on their
    way.
    """

    task: str
    name: str
    where: str
    heard: float
    key: str = ""
    acked: bool = False
    period_ends: float = 0.0
    over: bool = False
    again: bool = False

    @property
    def task_id(self) -> str:
        return task_id_of(self.task)

    @property
    def retries(self) -> int:
        """The number of the attempt that lives."""
        return int(self.task.rsplit(":", 2)[1])

    def encode(self) -> bytes:
        return _encoder.encode(given(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """The claim from the text of :meth:`encode`, also of a later version with more fields.

        Raises :exc:`ValueError` or :exc:`TypeError` for anything else.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise TypeError("it is no object")
        return cls(**{name: value for name, value in values.items() if name in _NAMES})

    def lasts(self, ttl: float, now: float) -> float:
        """Seconds for which it stays in the store, if nobody has to do with it."""
        period = max(0.0, self.period_ends - now)
        return period if self.over else max(period, ttl + max(0.0, self.heard - now))


_NAMES = tuple(field.name for field in fields(UniqueClaim))
_encoder = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Called:
    """What becomes of a call: the claim to store, and whether to publish its task.

    If it is a ``duplicate``, it is published under the id of the claim, if at all.
    """

    claim: UniqueClaim
    publish: bool
    duplicate: bool


def called(stored: UniqueClaim | None, claim: UniqueClaim, now: float, lives: Lives) -> Called:
    """A call would make *claim*. A duplicate that is not published changes nothing."""
    # Its worker died after the broker had its acknowledgement: nobody delivers it again.
    is_gone = stored is not None and stored.key and stored.acked and not (stored.over or lives())
    if stored is None or is_gone:
        return Called(claim, publish=True, duplicate=False)
    if stored.task_id == claim.task_id:  # the same call for the second time
        heard = stored.heard if stored.key else claim.heard
        return Called(replace(stored, heard=heard, again=True), publish=True, duplicate=False)
    if stored.over or now - stored.heard <= GRACE or lives():
        return Called(stored, publish=False, duplicate=True)
    return Called(replace(stored, heard=now, again=True), publish=True, duplicate=True)


def met(
    stored: UniqueClaim | None, claim: UniqueClaim, lives: Lives
) -> tuple[UniqueClaim, str | None]:
    """A worker has the message of *claim*: the claim to store, and the task that lives instead.

    A stored claim whose message nobody has gives way to this one.
    """
    if stored is not None and stored.task_id == claim.task_id:
        return replace(claim, period_ends=stored.period_ends, again=stored.again), None
    if stored is not None and (stored.over or lives()):
        return stored, stored.task_id
    return claim, None


def begun(
    stored: UniqueClaim | None, task_id: str, now: float, lives: Lives
) -> tuple[UniqueClaim | None, str | None]:
    """The body of *task_id*, unique until its start, is about to begin; the result is as of
    :func:`met`. A later call is not answered with this task.
    """
    if stored is not None and stored.task_id != task_id and (stored.over or lives()):
        return stored, stored.task_id
    return ended(stored, task_id, now), None


def doubted(stored: UniqueClaim | None, claim: UniqueClaim) -> UniqueClaim | None:
    """Nobody knows whether the message of *claim* was published: the claim to store.

    The next call publishes it once more.
    """
    return replace(claim, heard=0.0) if stored == claim else stored


def ended(
    stored: UniqueClaim | None, task_id: str, now: float, attempt: str = ""
) -> UniqueClaim | None:
    """*task_id* has ended: the claim to store. That of another task is not touched; nor, if an
    *attempt* is named, that of a later attempt.
    """
    if stored is None or stored.task_id != task_id or attempt not in ("", stored.task):
        return stored
    return replace(stored, over=True) if stored.period_ends > now else None
