"""What a block asks the store for, one question at a time, whoever waits in between.

A plain block sleeps in its thread, one of a coroutine on its event loop; the rules are the same.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_dlock.core.access import Access, Keys
from celery_dlock.core.backoff import pauses
from celery_dlock.core.events import Contended, Subject, TimedOut
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.state import Claim, Mode, WaitMode, task_id_of
from celery_dlock.errors import BackendUnavailable, LockContended, LockLost, LockTimeout
from celery_dlock.locks import lock_order
from celery_dlock.locks.current import held_term
from celery_dlock.locks.hold import Hold, Strike
from celery_dlock.messages.claims import claims_of
from celery_dlock.runtime import Runtime, real_app, runtime, this_process

#: Seconds for which a place is kept: more than the longest pause between two questions.
PLACE_TTL = 1.0


@dataclass(slots=True, eq=False)
class Asking:
    """What somebody wants to hold, has of it already, and asks for until it has the rest."""

    here: Runtime
    hold: Hold
    held: dict[str, Term]
    claims: list[Claim]
    parents: Sequence[str]
    max_hold: float | None
    timeout: float
    _taken: tuple[Term, ...] = field(default=(), init=False)
    _told: bool = field(default=False, init=False)
    _pauses: Iterator[float] = field(default_factory=pauses, init=False)
    _since: float = field(default_factory=time.monotonic, init=False)

    @classmethod
    def begin(
        cls,
        app: Any,
        keys: Keys,
        *,
        name: str,
        ttl: float | None,
        max_hold: float | None,
        timeout: float,
        strike: Strike | None = None,
    ) -> Asking:
        """For *keys*, some of which the running code may hold; *name* holds them, to people.

        *strike* is called at once when a key is lost, with that and the reason. Raises as
        :func:`_held` does.
        """
        here = runtime(app)
        held = _held(here, keys)
        if timeout:
            lock_order.asked(real_app(app), here.backend, keys.all)
        who = f"{name}@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        subject = Subject(who, name, name)
        claim = Claim(
            key="",
            task=f"{who}:0:0",
            nonce=uuid.uuid4().hex,
            ttl=here.lease_time(ttl),
            wait=WaitMode.PLACE if timeout else WaitMode.NOT,
            patience=int(PLACE_TTL * SECOND),
            name=name,
            where=this_process(),
        )
        claims = [claim for claim in claims_of(keys, claim) if claim.key not in held]
        hold = Hold(here.manager, here.sinks.emit, subject, strike)
        return cls(here, hold, held, claims, keys.parents, max_hold, timeout)

    def ask(self) -> float | None:
        """Ask the store once: the seconds until it is to be asked again, or None once all is held.

        When it raises nothing is held, and nothing owed.
        """
        if not self.claims:
            return None
        hold = self.hold
        try:
            answer = hold.ask(self.claims, self.max_hold or self.here.settings.max_hold)
        except BackendUnavailable:
            hold.owe(())  # taken back as far as it goes; to wait for it again helps nobody
            raise
        waited = time.monotonic() - self._since
        if isinstance(answer, Lease):
            hold.taken(answer, waited)
            self._taken = answer.terms
            return None
        error = answer.error
        if not self._told:
            self._told = True
            hold.emit(Contended(hold.subject, error.key, error.holder, 0, waited, error.hold))
        if waited < self.timeout:
            return min(next(self._pauses), self.timeout - waited)
        hold.owe(())
        if not self.timeout:
            raise error
        hold.emit(TimedOut(hold.subject, error.key, waited))
        raise LockTimeout(error.key, error.holder, error.seconds_left, waited, error.hold)

    def lease(self) -> Lease:
        """What is held, of old and anew."""
        terms = sorted((*self.held.values(), *self._taken), key=lambda term: term.claim.order)
        return self.here.manager.lease(terms, self.parents)

    def check_end(self, *, raises: bool) -> None:
        """Raise :exc:`LockLost` for a key of the code around that it has given back meanwhile; or,
        if it *raises*, has lost.

        Whoever is nested relies on that code, and learns of its end in no other way.
        """
        for key, term in self.held.items():
            if term.lost and (raises or term.leaves):
                raise LockLost(key, term.lost)


def _held(here: Runtime, keys: Keys) -> dict[str, Term]:
    """What the running code holds already of *keys*.

    Raises :exc:`LockContended` for a key that it holds otherwise, or beside more than its limit:
    waiting would be waiting for itself. Alone on a parent it may do below it what it likes.
    Raises :exc:`LockLost` for a key that it has lost.
    """
    held = {key: term for key in keys.all if (term := held_term(key, here.backend))}
    for key, term in held.items():
        if term.lost:
            raise LockLost(key, term.lost)
        is_parent = key in keys.parents
        asked = Access(Mode.SHARED) if is_parent else keys.access[key]
        alike = term.claim.mode is asked.mode and term.claim.limit <= asked.limit
        alone = term.claim.mode is Mode.EXCLUSIVE and term.claim.limit == 1
        if not (alike or (is_parent and alone)):
            left = max(0.0, term.trusted_until - term.monotonic())
            raise LockContended(key, task_id_of(term.claim.task), left)
    return held
