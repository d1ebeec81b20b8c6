"""One operation on a key: read it, compute, commit; and again if somebody was faster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.operations import Leave, OnDeadLetter, Operation, Reap
from celery_dlock.core.state import KeyState, Step, Waiting
from celery_dlock.errors import BackendUnavailable
from celery_dlock.forking import PerProcess
from celery_dlock.stores.base import Clock, Reply, Wake
from celery_dlock.stores.consensus.load import Loaded, Loader
from celery_dlock.stores.consensus.messages import Item, died
from celery_dlock.stores.consensus.record import decode_dead, number_in
from celery_dlock.stores.consensus.rows import Committed, Kind, Name, Row, Rows
from celery_dlock.stores.consensus.save import Saving
from celery_dlock.stores.unreadable import UnreadableKey

T = TypeVar("T")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

#: Seconds for which an operation is tried that others overtake.
COMMIT_TIMEOUT = 5.0

#: So many keys are remembered as used.
REMEMBERED = 10_000

#: The longest pause between two attempts, in seconds.
_PAUSE = 0.05

#: Keys share so many mutexes.
_LOCKS = 64


class Overtaken(BackendUnavailable):
    """Somebody else was faster, and nothing happened."""


class UsedKeys(set[str]):
    """Keys that were not free when they were last asked for: to try it is not worth a flight."""

    def note(self, key: str, *, used: bool) -> None:
        if not used:
            self.discard(key)
            return
        if len(self) >= REMEMBERED:
            self.clear()
        self.add(key)


class KeyMutexes:
    """A mutex for each key, within this process: threads wait for each other, rather than overtake.

    Of forty that read a key and commit at once, one succeeds, and the others have read in vain;
    some never get through. It is no lock of the key: a thread that waits too long goes on.
    """

    def __init__(self) -> None:
        # A thread of the parent may have had its turn at the fork.
        # Reentrant locks know whose turn it is.
        self._locks = PerProcess(lambda: [threading.RLock() for _ in range(_LOCKS)])

    def until_applied(self, operation: Operation[Any], attempt: Callable[[], T | None]) -> T:
        """As :meth:`until_committed`, but a release does not wait for its turn.

        Operations before it may be waiting for that very release.
        """
        first = isinstance(operation, Leave)
        return self.until_committed(operation.claim.key, attempt, first=first)

    def until_committed(
        self, key: str, attempt: Callable[[], T | None], *, first: bool = False
    ) -> T:
        """What *attempt* returns, made again for a while if others are faster: at ``None``.

        One that comes *first* does not wait for its turn. Raises
        :exc:`~celery_dlock.errors.BackendUnavailable` if others always are faster.
        """
        with self.at(key, 0 if first else COMMIT_TIMEOUT):
            give_up = time.monotonic() + COMMIT_TIMEOUT
            why = (
                f"other processes keep changing {key!r} in the lock store, and came first for "
                f"{COMMIT_TIMEOUT:g} s: nothing was done. Let fewer of them ask for it at once"
            )
            for failed in count():
                try:
                    done = attempt()
                except Overtaken as exc:
                    why = str(exc)
                else:
                    if done is not None:
                        return done
                if time.monotonic() > give_up:
                    raise BackendUnavailable(why)
                time.sleep(CHANCE.uniform(0, min(_PAUSE, 0.001 * 2**failed)))
        raise AssertionError("unreachable")

    @contextmanager
    def at(self, key: str, patience: float) -> Iterator[None]:
        """Wait for it, but no more than *patience* seconds."""
        lock = self._locks()[hash(key) % _LOCKS]
        try:  # around it, for a time limit may strike between the two
            lock.acquire(timeout=patience)
            yield
        finally:
            with suppress(RuntimeError):  # it was not our turn
                lock.release()


@dataclass(frozen=True, slots=True)
class Applied(Generic[V_co]):
    """The reply of an operation, and its commit."""

    reply: Reply[V_co]
    committed: Committed


class Transactions:
    """Applies operations to keys. With *clock*, everything goes by that, and holders' rows stay."""

    def __init__(self, rows: Rows, clock: Clock | None) -> None:
        self._rows = rows
        self._leased = clock is None
        self.now = clock or rows.now
        self._loader = Loader(rows, self._remembers)
        self._mutexes = KeyMutexes()

    def peek(self, key: str, limit: int | None) -> KeyState:
        return self._loader.load_first(key, self.now(), limit).state

    def position(self, key: str, task: str) -> tuple[Waiting, int] | None:
        return self._loader.position(key, task)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return self._loader.load_heads(keys, self.now())

    def apply(self, operation: Operation[V], token: int = 0) -> Applied[V]:
        """Commit what *operation* comes to; a grant made now has *token*."""

        def attempt() -> Applied[V] | None:
            loaded = self._loader.load(operation, self.now())
            return self._attempt(
                operation, operation.apply(loaded.state, loaded.now, token), loaded
            )

        return self._mutexes.until_applied(operation, attempt)

    def _attempt(
        self, operation: Operation[Any], step: Step[V], loaded: Loaded
    ) -> Applied[V] | None:
        claim, message = operation.claim, operation.message
        saving = Saving(claim, loaded, step, self._leased)
        if saving.outlived is not None:
            self._rows.drop(saving.outlived)
            return None
        if loaded.version_row is None:  # a key without a version row has no queue
            loaded.pages |= dict.fromkeys(saving.touched, ())
        self._loader.load_pages(claim.key, loaded, saving.touched)
        dead = loaded.dead if isinstance(operation, OnDeadLetter) else None
        rows_of_dead: set[Name] = set()
        if dead is not None:
            letter, message = decode_dead(dead.value)
            item = Item(True, claim.key, claim.task)
            rows_of_dead = {Name(Kind.DEAD, *item[1:]), died(claim.key, letter), item.name}
        woken = self._woken(saving)
        commit = saving.commit(message, woken)
        commit.delete |= rows_of_dead
        # What changes nothing asks all the same whether what it has read still stands: its verdict
        # depends on that. To let time pass has none.
        if commit.changes or not isinstance(operation, Reap):
            committed = self._rows.commit(commit)
        else:
            committed = Committed(0, loaded.version_row)
        if committed is None:
            return None
        if not step.wakes:
            return Applied(Reply(step.verdict), committed)
        messages = {**woken, **commit.create, **commit.update}
        # One that should be there and is not is woken all the same: so somebody notices.
        names = [Name(Kind.MESSAGE, claim.key, turn.task) for turn in step.wakes]
        wakes = tuple(
            Wake(claim.key, turn.task, messages.get(name, b""), turn.ending, turn.woken)
            for turn, name in zip(step.wakes, names, strict=True)
        )
        return Applied(Reply(step.verdict, wakes), committed)

    def _woken(self, saving: Saving) -> dict[Name, bytes]:
        rows = read_each(self._rows, saving.woken())
        return {name: row.value for name, row in rows.items() if row is not None}

    def _remembers(self, done: Row, now: int) -> bool:
        """A store forgets by itself what is over, but not by another clock."""
        return self._leased or number_in(done) > now


def read_each(rows: Rows, names: Sequence[Name]) -> dict[Name, Row | None]:
    """The rows of *names*; one that cannot be read must not hide the others, and is empty."""
    if not names:
        return {}
    try:
        return dict(zip(names, rows.read(names), strict=True))
    except UnreadableKey:
        if len(names) == 1:
            return {names[0]: Row(b"", "", 0)}
    return {name: row for one in names for name, row in read_each(rows, [one]).items()}
