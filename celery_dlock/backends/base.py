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

from celery_dlock.backends.copies import Copies
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


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Some of the keys that are in use; with *cursor* comes the next page, after ``None`` none."""

    keys: tuple[str, ...]
    cursor: str | None


def by_age(burial: Burial) -> tuple[int, str, str]:
    """In which order a store tells of its dead."""
    return burial.dead.at, burial.key, burial.dead.task


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What every store is built with, whatever its URL says.

    ``prefix`` keeps two applications apart on one store. ``ttl`` is ``dlock_ttl`` in seconds, for
    a store that has one lease for all locks of a process. ``clock`` replaces the store's own clock
    in tests. ``driver`` is ``dlock_backend_options``, handed to the driver as it is. ``copies`` is
    ``dlock_wait_replicas``, for a store that ``replicates``.
    """

    prefix: str = "dlock"
    ttl: float = 30.0
    clock: Clock | None = None
    driver: Mapping[str, Any] = field(default_factory=dict[str, Any])
    copies: Copies | None = None


class LockBackend(ABC):
    """A store of locks. Safe to share between threads; never carried over a fork.

    Every operation raises :exc:`~celery_dlock.errors.BackendUnavailable` when the store does not
    answer; whether the call took effect is then unknown.
    """

    traits: ClassVar[frozenset[Trait]]
    guarantee: ClassVar[Guarantee]
    #: In bytes; the task layer hands over no message that is larger.
    largest_message: ClassVar[int]
    #: Whether it can wait for replicas, which otherwise learn of a hold later.
    replicates: ClassVar[bool] = False
    #: Whether a process that uses it may fork, and its children use it, too. If not, a process
    #: that forks as long as it lives uses it through :mod:`celery_dlock.backends.helper`.
    forks: ClassVar[bool] = True

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

    def lease_of(self, ttl: int) -> int:
        """For how long a claim of *ttl* may be trusted from its sending, in microseconds.

        That is *ttl* unless it counts in other units or has one lease a process; it may be asked.
        """
        return ttl

    def certain(self, timeout: float) -> bool:
        """Whether the store would have said that a lease is lost, waiting up to *timeout* seconds.

        ``False`` while a store that keeps leases by a connection has none.
        """
        return True

    def missing(self) -> str:
        """Why there is no store to look at, if the next operation would make one; else empty.

        Who only looks asks this first. It asks no server: one is there or not, whoever comes.
        """
        return ""

    @abstractmethod
    def now(self) -> int:
        """The clock its instants go by: the store's, or this host's if that tells nobody."""

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
    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """Write *notes* beside *key* (``None`` deletes one), all or none; whether that was done.

        *token*, from 0 and below 2**63, is the writer's fencing token. It is refused once a larger
        one has written beside this key, be it nothing: what stands then stays. An equal one passes.
        Who is refused may have written before that larger one came, if an answer was lost.

        Notes have no expiry, and nothing to do with who holds the key or waits for it: they stay
        when it is idle. More than a hundred, or half a megabyte, may be written in several steps,
        each of them all or none.
        """

    @abstractmethod
    def notes(self, key: str) -> dict[str, bytes]:
        """What stands beside *key*; sees every note of which its writer was told."""

    @abstractmethod
    def peek(self, key: str) -> KeyState:
        """The whole state of *key*, for people and tests; ``done`` and ``lost`` may be left out."""

    @abstractmethod
    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """Keys that are held, called or waited for, about *limit* (from 1) a page, in any order.

        A page may be longer, or shorter, even empty: only a ``None`` as the cursor ends the list.
        Who follows the cursors to that end is told every key that was in use all the while, some
        more than once, and perhaps some of which all has lapsed by now; but a Redis that starts
        anew, or is replaced, meanwhile may leave some out. With *waiting* come only keys with
        messages: that wait, were called, or are kept while their task runs.

        Raises :exc:`ValueError` for a *cursor* that it cannot have given; one that it might have
        given begins somewhere. So a cursor may come from anybody.
        """

    @abstractmethod
    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """The state of each of *keys* as an operation finds it, in as few flights as possible.

        All holders and grants, and of the queue the head: up to ``WINDOW`` entries, but no places
        that have lapsed. ``parked`` counts all of it; of the rest anything may be left out. Who has
        lost the key may be a holder until somebody comes. A key that is not in use has an empty
        state. It costs the same with ten waiting or a million, and changes nothing. If one of
        *keys* cannot be read it fails for all; a store that knows which raises
        :exc:`~celery_dlock.backends.unreadable.KeysUnavailable`.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back connections. The store may be used again afterwards."""
