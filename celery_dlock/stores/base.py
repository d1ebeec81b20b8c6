"""What a lock store is: something that commits the rules of the machine, one operation at a time.

A store knows nothing of Celery, of policies, or of threads that renew. It loads what
:mod:`celery_dlock.core.operations` names need, applies its rule, and commits what came out.
Every operation repeats safely: a caller that lost the reply asks again with the same nonce.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

from celery_dlock.core.debounce import Postponed
from celery_dlock.core.lease import HolderRow
from celery_dlock.core.operations import (
    Cancel,
    DeadLetter,
    Enter,
    HandBack,
    Leave,
    Operation,
    Postpone,
    Reap,
)
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
    Waiting,
)
from celery_dlock.errors import BackendUnavailable

V = TypeVar("V")
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
    """A waiting task that is woken, and its message as it was parked.

    ``ending`` is ``None`` when its turn has come; else it is woken to end, for that reason.
    ``woken`` counts the wakes, this one included.
    """

    key: str
    task: str
    message: bytes
    ending: Ending | None = None
    woken: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Reply(Generic[V_co]):
    """The store's answer: a verdict, and what the caller has to publish before it goes on."""

    verdict: V_co
    wakes: tuple[Wake, ...] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found due, and in how many seconds the next key is (``None``: none is).

    That may be too early for a key whose lease was renewed: the next sweep puts it right.
    ``lost_data`` says that since the last one the store has come back with less than it had.
    """

    wakes: tuple[Wake, ...]
    next_in: float | None
    lost_data: bool = False


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A dead letter: the message, whose it was, and why it is dead."""

    key: str
    dead: Dead
    message: bytes


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Some of the keys that are in use; with *cursor* comes the next page, after ``None`` none."""

    keys: tuple[str, ...]
    cursor: str | None


def by_age(message: DeadMessage) -> tuple[int, str, str]:
    """In which order a store lists its dead letters."""
    return message.dead.at, message.key, message.dead.task


@dataclass(frozen=True, slots=True)
class Copies:
    """Where a hold must have been copied before it counts, and how many seconds that may take."""

    replicas: int
    timeout: float = 1.0


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What every store is built with, whatever its URL says.

    ``prefix`` keeps two applications apart on one store. ``ttl`` is ``dlock_ttl`` in seconds; for
    a store that has one lease for all locks of a process the longest that one of its tasks asks
    for. ``clock`` replaces the store's own clock
    in tests. ``driver`` is ``dlock_backend_options``, handed to the driver as it is. ``copies`` is
    ``dlock_wait_replicas``, for a store that ``replicates``.
    """

    prefix: str = "dlock"
    ttl: float = 30.0
    clock: Clock | None = None
    driver: Mapping[str, Any] = field(default_factory=dict[str, Any])
    copies: Copies | None = None


def wall_clock() -> int:
    """Microseconds since the epoch, on this host's clock."""
    return time.time_ns() // 1000


def servers_of(url: str) -> tuple[str, SplitResult]:
    """Login and servers in *url*, and its other parts.

    :func:`~urllib.parse.urlsplit` refuses an IPv6 address that stands behind another server. Raises
    :exc:`ValueError` as that does.
    """
    scheme, _, rest = url.partition("://")
    servers = re.split("[/?#]", rest, maxsplit=1)[0]
    return servers, urlsplit(f"{scheme}://host{rest.removeprefix(servers)}")


class InUse(BackendUnavailable):
    """The key is not released: an open transaction of the application has passed the fence."""


class LockBackend(ABC):
    """A store of locks. Safe to share between threads, and over a fork unless it says otherwise.

    A forked child has its own connections, threads and memory of claims, and leaves its parent's
    alone (:class:`~celery_dlock.forking.PerProcess`); it does not ask who it is at each call.

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
    #: that forks as long as it lives uses it through :mod:`celery_dlock.stores.subprocess`.
    forks: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """Build the store from its URL, without connecting.

        Raises :exc:`~celery_dlock.errors.ConfigurationError` for a URL it cannot read.
        """

    @abstractmethod
    def apply(self, operation: Operation[V]) -> Reply[V]:
        """Commit what *operation* comes to, all or nothing.

        An :class:`~celery_dlock.core.operations.Enter` that is granted gets a fencing token larger
        than all before. An :class:`~celery_dlock.core.operations.OnDeadLetter` sees the dead
        letter.
        """

    def apply_each(self, operations: Sequence[Operation[V]]) -> list[Reply[V]]:
        """Commit one after the other, of one key; in one round trip or transaction, if it can.

        If it raises, some may have been committed.
        """
        return [self.apply(operation) for operation in operations]

    def row_of(self, claim: Claim) -> HolderRow | None:
        """Where a fence in the same database finds the row of *claim*, which holds its key.

        ``None`` if the store has no rows that a transaction of the application could keep.
        """
        return None

    @abstractmethod
    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        """Extend each claim's lease by its own ttl, all in one round trip; one verdict a claim.

        The lease of one that is asked to give way to a newer task is not extended.
        """

    def lease_of(self, ttl: int) -> int:
        """For how long a claim of *ttl* may be trusted from its sending, in microseconds.

        That is *ttl* unless it counts in other units or has one lease a process; it may be asked.
        """
        return ttl

    def granted(self) -> float | None:
        """Seconds of the lease that a process is granted which has one for all of its locks.

        ``None`` where that is not so, or not known. It is asked before a process forks: what it
        opens is closed again.
        """
        return None

    def certain(self, timeout: float) -> bool:
        """Whether the store would have said that a lease is lost, waiting up to *timeout* seconds.

        ``False`` while a store that keeps leases by a connection has none.
        """
        return True

    def missing(self) -> str:
        """Why there is no store to look at, if the next operation would make one; else empty.

        A caller that only looks asks this first.
        """
        return ""

    @classmethod
    def tables(cls, role: str | None = None) -> Sequence[str]:
        """The statements with which somebody can make its tables, and grant them to *role*.

        None where that is not needed.
        """
        return ()

    @abstractmethod
    def now(self) -> int:
        """The clock its instants go by: the store's, or this host's if that tells nobody."""

    @abstractmethod
    def sweep(self, limit: int = 100) -> Swept:
        """:meth:`reap` up to *limit* keys that are due, the most overdue first.

        Several may sweep at once: a key that one has reaped is no longer due for the others.
        """

    @abstractmethod
    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        """Key and task of each message that the store has under any of *task_ids*, in any order.

        It costs what the ids are many, and not what waits: each worker asks it for each revocation.
        """

    @abstractmethod
    def message(self, key: str, task: str) -> bytes | None:
        """The message of *task* that waits for *key*, or was woken; ``None`` if there is none.

        For people who ask what it is. It changes nothing.
        """

    @abstractmethod
    def dead(self, limit: int = 100) -> list[DeadMessage]:
        """Dead letters, the oldest first, and then by key and task.

        Of those that are not among the first *limit* no message is read.
        """

    @abstractmethod
    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        """The dead letters of *task_ids*, in the same order, whatever else is dead."""

    @abstractmethod
    def count_dead(self) -> int:
        """How many dead letters there are; none of them is read."""

    @abstractmethod
    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        """Put *becomes* under *name*, for *stays* microseconds, if what stands there is *was*.

        What stands there now is returned: *becomes* if that was so, and also if the same was asked
        before and not answered. ``None`` stands for nothing: nothing was put, or it was taken away,
        or its time is over. What is put is never empty. A name has nothing to do with a key of the
        same text. Unique claims lie there.
        """

    @abstractmethod
    def swapped(self, limit: int = 100) -> list[tuple[str, bytes]]:
        """Up to *limit* names under which something stands, in any order, and what that is.

        For people, not for operations: it may look through all that there is.
        """

    @abstractmethod
    def peek(self, key: str, limit: int | None = None) -> KeyState:
        """The state of *key* with the first *limit* (from 1) of its queue, expired places too.

        It is for people. Without a limit it is the whole state, for tests: that costs what the
        queue is long. ``done`` and ``lost`` may be left out.
        """

    @abstractmethod
    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        """The entry of *task* in the queue of *key*, and how many stand before it; ``None`` if it
        does not wait there.

        It costs the same however many wait. Some that have left the queue may be counted.
        """

    @abstractmethod
    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """Keys that are held, reserved or waited for, about *limit* (from 1) a page, in any order.

        A page may be longer, or shorter, even empty: only a ``None`` as the cursor ends the list.
        The pages up to that end name every key that was in use all the while, some more than once,
        and perhaps some of which all has expired by now; but a Redis that starts anew, or is
        replaced, meanwhile may leave some out. With *waiting* come only keys with messages: that
        wait, were woken, or are kept while their task runs. Some that only cool down may, too.

        Raises :exc:`ValueError` for a *cursor* that it cannot have given; one that it might have
        given begins somewhere. So a cursor may come from anybody.
        """

    @abstractmethod
    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """The state of each of *keys* as an operation finds it, in as few flights as possible.

        All holders and grants, and of the queue the head: up to ``WINDOW`` entries, but no places
        that have expired. ``parked`` counts all of it; of the rest anything may be left out. A
        holder whose lease has expired may be told of until somebody comes. A key that is not in
        use has an empty state. It costs the same with ten waiting or a million, and changes
        nothing. If one of *keys* cannot be read it fails for all; a store that knows which raises
        :exc:`~celery_dlock.stores.unreadable.KeysUnavailable`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close connections. The store may be used again afterwards."""

    # Short for what is asked most; a store has only :meth:`apply`.

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        return self.apply(Enter(claim, message))

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        return self.apply(Leave(claim, outcome, message))

    def postpone(
        self, claim: Claim, message: bytes, delay: int, max_delay: int
    ) -> Reply[Postponed]:
        return self.apply(Postpone(claim, message, delay, max_delay))

    def reap(self, key: str) -> Reply[None]:
        return self.apply(Reap(key))

    def cancel(self, key: str, task: str) -> Reply[bool]:
        return self.apply(Cancel(key, task))

    def dead_letter(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return self.apply(DeadLetter(key, task, cause))

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return self.apply(HandBack(key, task))


class NoteStore(LockBackend):
    """A store that also keeps notes beside a key, under fencing tokens; beat asks for it."""

    @abstractmethod
    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """Write *notes* beside *key* (``None`` deletes one), all or none; whether that was done.

        *token*, from 0 and below 2**63, is the writer's fencing token. It is refused once a larger
        one has written beside this key, be it nothing: what stands then stays. An equal one passes.
        A writer that is refused may have written before the larger one, if an answer was lost.

        Notes have no expiry, and nothing to do with who holds the key or waits for it: they stay
        when it is idle. More than a hundred, or half a megabyte, may be written in several steps,
        each of them all or none.
        """

    @abstractmethod
    def notes(self, key: str) -> dict[str, bytes]:
        """What stands beside *key*; sees every note of which its writer was told."""


# For stores that list their keys by name: the cursor is the last name of the page before.
_AFTER = ">"


def last_of(cursor: str) -> str | None:
    """The name after which the page of *cursor* begins.

    Raises :exc:`ValueError` for what no page has given.
    """
    if not cursor:
        return None
    if not cursor.startswith(_AFTER):
        raise ValueError("this is not a cursor of a list of keys")
    cursor.encode()  # half of a character is in no name
    return cursor.removeprefix(_AFTER)


def first_of(cursor: str) -> str:
    """The least name that can be on that page, for names in the order of their characters."""
    last = last_of(cursor)
    return "" if last is None else last + "\0"


def page(names: Sequence[str], limit: int) -> KeyPage:
    """The page that *names* begin with; they are in order, and more than *limit* if there are."""
    shown = tuple(names[:limit])
    return KeyPage(shown, _AFTER + shown[-1] if len(names) > limit else None)


def live(head: Iterable[Waiting], now: int) -> tuple[Waiting, ...]:
    """The entries of the *head* of a queue without the places that have expired."""
    return tuple(entry for entry in head if entry.expires is None or entry.expires > now)
