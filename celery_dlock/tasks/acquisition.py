"""How the locks of a block are acquired, one question to the store at a time.

Between two questions a plain block sleeps in its thread, and a coroutine on its event loop; the
rules are the same.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_dlock.core.access import Keys
from celery_dlock.core.backoff import pauses
from celery_dlock.core.events import Contended, StaleRejected, Subject, TimedOut, Unavailable
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.state import Claim, Mode, WaitMode, task_id_of
from celery_dlock.errors import (
    BackendUnavailable,
    LockContended,
    LockLost,
    LockTimeout,
    StaleFencingToken,
)
from celery_dlock.locks import lock_order
from celery_dlock.locks.current import held_term
from celery_dlock.locks.hold import Hold, Strike
from celery_dlock.messages.claims import claims_of
from celery_dlock.runtime import Runtime, real_app, runtime, this_process

#: Seconds for which a place is kept: more than the longest pause between two questions.
PLACE_TTL = 1.0


@dataclass(slots=True, eq=False)
class Acquisition:
    """The keys of a block, or of a direct call: the terms of those that the code around it holds,
    and the claims on the others, until the store grants them.
    """

    runtime: Runtime
    hold: Hold
    outer_terms: dict[str, Term]
    claims: list[Claim]
    parents: Sequence[str]
    timeout: float
    _terms: tuple[Term, ...] = field(default=(), init=False)
    _contended: bool = field(default=False, init=False)
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
        timeout: float,
        strike: Strike | None = None,
    ) -> Acquisition:
        """Of *keys*, some of which the running code may hold; people see *name* as the holder.

        *strike* is called with a key and the reason as soon as the key is lost. Raises as
        :func:`_outer_terms` does.
        """
        app_runtime = runtime(app)
        outer_terms = _outer_terms(app_runtime, keys)
        if timeout:
            lock_order.asked(real_app(app), app_runtime.backend, keys.all)
        owner = f"{name}@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
        subject = Subject(owner, name, name)
        terms = {
            "task": f"{owner}:0:0",
            "nonce": uuid.uuid4().hex,
            "ttl": app_runtime.lease_time(ttl),
            "wait": WaitMode.PLACE if timeout else WaitMode.NOT,
            "patience": int(PLACE_TTL * SECOND),
            "name": name,
            "where": this_process(),
        }
        claims = [claim for claim in claims_of(keys, terms) if claim.key not in outer_terms]
        hold = Hold(app_runtime.manager, app_runtime.sinks.emit, subject, strike)
        return cls(app_runtime, hold, outer_terms, claims, keys.parents, timeout)

    def ask(self) -> float | None:
        """Ask the store once. The seconds until the next question, or None: all keys are held.

        When it raises nothing is held, and nothing has to be released.
        """
        if not self.claims:
            return None
        hold = self.hold
        try:
            answer = hold.ask(self.claims, self.runtime.settings.max_hold)
        except BackendUnavailable as exc:
            hold.claims = ()  # taken back as far as it goes; to wait for it again helps nobody
            hold.emit(Unavailable(hold.subject, str(exc)))
            raise
        waited = time.monotonic() - self._since
        if isinstance(answer, Lease):
            hold.taken(answer, waited)
            self._terms = answer.terms
            return None
        error = answer.error
        if not self._contended:
            self._contended = True
            hold.emit(Contended(hold.subject, error.key, error.holder, 0, waited, error.hold))
        if waited < self.timeout:
            return min(next(self._pauses), self.timeout - waited)
        hold.claims = ()
        if not self.timeout:
            raise error
        hold.emit(TimedOut(hold.subject, error.key, waited))
        raise LockTimeout(
            error.key,
            error.holder,
            error.seconds_left,
            waited,
            error.hold,
            error.by,
            f"timeout={self.timeout:.12g} of lock()",
        )

    def lease(self) -> Lease:
        """The lease of all keys, those of the code around the block among them."""
        terms = [*self.outer_terms.values(), *self._terms]
        terms.sort(key=lambda term: term.claim.order)
        return self.runtime.manager.lease(terms, self.parents)

    def tell_refused(self, error: StaleFencingToken) -> None:
        """Tell that a late write has ended the block."""
        self.hold.emit(StaleRejected(self.hold.subject, error.resource, error.mine))

    def check_outer(self, *, raises: bool) -> None:
        """Raise :exc:`LockLost` for a key that the code around the block has released meanwhile,
        or, if it *raises*, has lost. The block learns of it in no other way.
        """
        for key, term in self.outer_terms.items():
            if term.lost and (raises or term.leaves):
                raise _has_run(key, term.lost)

    def check_own(self) -> None:
        """Raise :exc:`LockLost` if a key of its own was lost before it was given back."""
        loss = self.hold.loss
        if loss is not None:
            raise _has_run(loss.key, loss.reason)


def _has_run(key: str, reason: str) -> LockLost:
    """The error at the end of a block that nothing has interrupted."""
    return LockLost(
        key,
        f"{reason}. The block has run to its end all the same, maybe while another held the key: "
        "look at lease.lost in it, before what cannot be undone",
    )


def _outer_terms(app_runtime: Runtime, keys: Keys) -> dict[str, Term]:
    """The terms of those of *keys* that the running code holds already.

    Raises :exc:`LockContended` for a key that it holds in another mode: it would wait for itself.
    What it holds for itself alone it may have with a limit, too, and read if it is a parent. Raises
    :exc:`LockLost` for a key that it has lost.
    """
    store = app_runtime.backend
    terms = {key: term for key in keys.all if (term := held_term(key, store))}
    for key, term in terms.items():
        if term.lost:
            raise LockLost(key, term.lost)
        is_parent = key in keys.parents
        mode = Mode.SHARED if is_parent else keys.access[key].mode
        is_alone = term.claim.mode is Mode.EXCLUSIVE
        if term.claim.mode is not mode and not (is_alone and (is_parent or mode is Mode.LIMITED)):
            seconds_left = max(0.0, term.trusted_until - term.monotonic())
            by = "the code around it, and in another way: alone, with a Limit or as Shared"
            raise LockContended(key, task_id_of(term.claim.task), seconds_left, by=by)
    return terms
