"""What a lock store is: something that commits the rules of the machine, one operation at a time.

A store knows nothing of Celery, of policies, or of threads that renew. It loads what
:mod:`celery_dlock.core.machine` needs, applies one function, and commits the result atomically.
Every operation repeats safely: a caller that lost the reply asks again with the same nonce.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, Self, TypeVar

from celery_dlock.core.state import (
    Cause,
    Claim,
    Dead,
    Ending,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Outcome,
    RenewVerdict,
)

V_co = TypeVar("V_co", covariant=True)

#: Microseconds since the epoch.
Clock = Callable[[], int]


class Trait(StrEnum):
    """What a store can promise; ``dlock_require`` names the ones that must be there."""

    MULTI_PROCESS = "multi-process"
    MULTI_HOST = "multi-host"
    DURABLE = "durable"
    LEASE_PER_TASK = "lease-per-task"
    MONOTONE_FENCING = "monotone-fencing"
    STRICT_FENCING = "strict-fencing"


class Guarantee(StrEnum):
    """How far a fencing token of this store can be trusted, in one word.

    ``STRICT``: every later grant has a larger token. ``MONOTONE``: so it has unless data is lost
    and a clock steps back. ``BEST_EFFORT``: a failover may break it.
    """

    STRICT = "strict"
    MONOTONE = "monotone"
    BEST_EFFORT = "best-effort"


@dataclass(frozen=True, slots=True)
class Wake:
    """A waiting task that is called, and its message as it was parked.

    ``ending`` is ``None`` when its turn has come; else it is called to end, for that reason.
    """

    key: str
    task: str
    message: bytes
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Reply(Generic[V_co]):
    """The store's answer: a verdict, and what the caller has to publish before it goes on."""

    verdict: V_co
    wakes: tuple[Wake, ...] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found due, and in how many seconds the next key is (``None``: none is).

    That may be too early for a key whose lease was renewed: the next sweep puts it right.
    """

    wakes: tuple[Wake, ...]
    next_in: float | None


@dataclass(frozen=True, slots=True)
class Burial:
    """A dead message, whose it was, and why it is dead."""

    key: str
    dead: Dead
    message: bytes


def by_age(burial: Burial) -> tuple[int, str, str]:
    """In which order a store tells of its dead."""
    return burial.dead.at, burial.key, burial.dead.task


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What every store is built with, whatever its URL says.

    ``prefix`` keeps two applications apart on one store. ``clock`` replaces the store's own clock
    in tests. ``driver`` is ``dlock_backend_options``, handed to the driver as it is.
    """

    prefix: str = "dlock"
    clock: Clock | None = None
    driver: Mapping[str, Any] = field(default_factory=dict[str, Any])


class LockBackend(ABC):
    """A store of locks. Safe to share between threads; never carried over a fork.

    Every operation raises :exc:`~celery_dlock.errors.BackendUnavailable` when the store does not
    answer; whether the call took effect is then unknown.
    """

    traits: ClassVar[frozenset[Trait]]
    guarantee: ClassVar[Guarantee]
    #: In bytes; the task layer hands over no message that is larger.
    largest_message: ClassVar[int]

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """Build the store from its URL, without connecting.

        Raises :exc:`~celery_dlock.errors.ConfigurationError` for a URL it cannot read.
        """

    @abstractmethod
    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        """Ask for ``claim.key``; *message* is what a verdict ``Park`` leaves with the store.

        So does a verdict ``Run`` of a claim with ``keep``, until it leaves. A message that the
        store has of this task already is not replaced.
        """

    @abstractmethod
    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        """Give the key back; *message* is what goes back to the head of the queue on ``REPEAT``.

        With ``claim.successor`` the key stays reserved for that task, and its message is called if
        it waits already.
        """

    @abstractmethod
    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        """Extend each claim's lease by its own ttl, all in one round trip; one verdict a claim."""

    @abstractmethod
    def reap(self, key: str) -> Reply[None]:
        """Let time pass on *key*: drop what has ended, call who is next."""

    @abstractmethod
    def sweep(self, limit: int = 100) -> Swept:
        """:meth:`reap` up to *limit* keys that are due, the most overdue first.

        Several may sweep at once: a key that one has reaped is no longer due for the others.
        """

    @abstractmethod
    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        """Key and task of each message that the store has under any of *task_ids*, in any order.

        It looks through all queues, once for all ids: for people who revoke, not for operations.
        """

    @abstractmethod
    def cancel(self, key: str, task: str) -> Reply[bool]:
        """Call *task* to end as revoked; whether its message waited for *key*, or was called.

        One that runs goes on, and one that is called to end for another reason ends for that.
        """

    @abstractmethod
    def bury(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        """*task* was called for *key* and its message is of no use; whether it is dead now.

        That takes several calls: another worker may be able to read it.
        """

    @abstractmethod
    def hand_back(self, key: str, task: str) -> Reply[bool]:
        """*task* was called for *key*, and another process has to publish it; whether it waits."""

    @abstractmethod
    def dead(self, limit: int = 100) -> list[Burial]:
        """Dead messages, the oldest first, and then by key and task."""

    @abstractmethod
    def replay(self, key: str, task: str) -> Reply[bool]:
        """Forget that *task* is done or lost runs; whether it was dead, and waits for *key* again.

        If another message of it waits, that one stays, and the dead one is forgotten.
        """

    @abstractmethod
    def peek(self, key: str) -> KeyState:
        """The whole state of *key*, for people and tests; ``done`` and ``lost`` may be left out."""

    @abstractmethod
    def close(self) -> None:
        """Give back connections. The store may be used again afterwards."""
