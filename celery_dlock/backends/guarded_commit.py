"""One operation on a key: read it, compute, commit; and again if somebody was faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from celery_dlock.backends.base import Clock, Reply, Wake
from celery_dlock.backends.guarded_load import Loaded, Loader
from celery_dlock.backends.guarded_save import Saving
from celery_dlock.backends.guarded_turns import Turns
from celery_dlock.backends.record import decode_dead
from celery_dlock.backends.rows import Committed, Kind, Name, Row, Rows
from celery_dlock.core.state import Claim, KeyState
from celery_dlock.core.step import Step

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
Rule = Callable[[Loaded], Step[V]]

#: Seconds for which an operation is tried that others overtake.
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Applied(Generic[V_co]):
    """The reply of an operation, and its commit."""

    reply: Reply[V_co]
    committed: Committed


class Transactions:
    """Applies rules to keys. With *clock*, everything goes by that, and holders' rows stay."""

    def __init__(self, rows: Rows, clock: Clock | None) -> None:
        self._rows = rows
        self._leased = clock is None
        self.now = clock or rows.now
        self._loader = Loader(rows, self._remembers)
        self._turns = Turns()

    def peek(self, key: str) -> KeyState:
        return self._loader.load_all(key, self.now()).state

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return self._loader.load_heads(keys, self.now())

    def apply(
        self,
        claim: Claim,
        rule: Rule[V],
        message: bytes | None = None,
        *,
        confirm: bool = True,
        exhume: bool = False,
    ) -> Applied[V]:
        """Apply *rule* to what concerns *claim*.

        With *exhume* its message comes from its grave, which is gone afterwards.

        Unless told not to *confirm*, an operation that changes nothing asks all the same whether
        what it has read still stands: its verdict depends on that.
        """

        def attempt() -> Applied[V] | None:
            found = self._loader.load(claim.key, self.now(), claim.task, claim.successor)
            return self._attempt(claim, rule(found), found, message, confirm, exhume)

        return self._turns.until_committed(claim.key, attempt, PATIENCE)

    def _attempt(
        self,
        claim: Claim,
        step: Step[V],
        found: Loaded,
        message: bytes | None,
        confirm: bool,
        exhume: bool,
    ) -> Applied[V] | None:
        saving = Saving(claim, found, step, self._leased)
        if saving.outlived is not None:
            self._rows.drop(saving.outlived)
            return None
        if found.guard is None:  # a key without a guard has no queue
            found.pages |= dict.fromkeys(saving.touched, ())
        self._loader.load_pages(claim.key, found, saving.touched)
        if exhume and found.grave is not None:
            message = decode_dead(found.grave.value)[1]
        called = self._called(saving)
        commit = saving.commit(message, called)
        if exhume and found.grave is not None:
            commit.delete.add(Name(Kind.DEAD, claim.key, claim.task))
        if confirm or commit.changes:
            committed = self._rows.commit(commit)
        else:
            committed = Committed(0, found.guard)
        if committed is None:
            return None
        if not step.wakes:
            return Applied(Reply(step.verdict), committed)
        messages = {**called, **commit.create}
        # One that should be there and is not is called all the same: so somebody notices.
        wakes = tuple(
            Wake(claim.key, t.task, messages.get(_message(claim.key, t.task), b""), t.ending)
            for t in step.wakes
        )
        return Applied(Reply(step.verdict, wakes), committed)

    def _called(self, saving: Saving) -> dict[Name, bytes]:
        names = saving.called()
        if not names:
            return {}
        rows = zip(names, self._rows.read(names), strict=True)
        return {name: row.value for name, row in rows if row is not None}

    def _remembers(self, done: Row, now: int) -> bool:
        """A store forgets by itself what is over, but not by another clock."""
        return self._leased or int(done.value) > now


def _message(key: str, task: str) -> Name:
    return Name(Kind.MESSAGE, key, task)
