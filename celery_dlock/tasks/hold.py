"""Locks without a message: ``lock()`` in web handlers and scripts, and direct calls of a task.

They take the very locks that tasks take. A key that the running code holds already is not taken
again: the block runs under the lease that is there.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from celery import current_app

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.checks import check_limit, duration
from celery_dlock.core.current import held_term, holding
from celery_dlock.core.events import (
    Acquired,
    Contended,
    Lost,
    Released,
    Subject,
    TimedOut,
    Unavailable,
)
from celery_dlock.core.keeper import OnLost
from celery_dlock.core.keys import Keys, canonical
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.manager import Keeping, Refused
from celery_dlock.core.state import Busy, Claim, Mode, Outcome, Same, Wait, task_id_of
from celery_dlock.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockContended,
    LockLost,
    LockTimeout,
)
from celery_dlock.tasks.abort import Abort
from celery_dlock.tasks.claims import claims_of
from celery_dlock.tasks.once import Once
from celery_dlock.tasks.runtime import Runtime, runtime

#: Between two questions, in seconds; a place is kept a little longer than the longest.
ASK_FIRST = 0.01
ASK_LAST = 0.25
PATIENCE = 1.0


def lock(
    key: str | Sequence[str],
    *,
    app: Any = None,
    ttl: float | None = None,
    timeout: float = 5.0,
    limit: int = 1,
    shared: bool = False,
    parents: str | Sequence[str] = (),
) -> AbstractContextManager[Lease]:
    """Hold *key* for the time of a ``with`` block, outside tasks or inside them.

    It waits for up to *timeout* seconds (0: not at all). *ttl* is the length of the lease, which
    is renewed in the background while the block runs. With several keys all are taken or none.
    *parents* are keys that the block holds for reading: whoever takes one of them exclusively
    waits for the block and holds it off.

    Raises :exc:`~celery_dlock.ConfigurationError` for what makes no sense;
    :exc:`~celery_dlock.LockContended` at once with ``timeout=0``, or when the running code
    holds the key in another mode; :exc:`~celery_dlock.LockLost` when it held the key and has lost
    it, or stood still before the block began; :exc:`~celery_dlock.LockTimeout` when time is over;
    and :exc:`~celery_dlock.BackendUnavailable` when the store does not answer.
    """
    own = _canonical(key)
    if not own:
        raise ConfigurationError("a lock needs at least one key, got an empty list")
    check_limit(limit, shared=shared)
    return hold(
        app or current_app,
        Keys(own, _canonical(parents)),
        name="lock()",
        mode=Mode.SHARED if shared else Mode.EXCLUSIVE,
        limit=limit,
        ttl=None if ttl is None else duration("ttl", ttl),
        max_hold=None,
        timeout=duration("timeout", timeout, zero=True),
    )


def _canonical(keys: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({canonical(k) for k in ([keys] if isinstance(keys, str) else keys)}))


@contextmanager
def hold(
    app: Any,
    keys: Keys,
    *,
    name: str,
    mode: Mode,
    limit: int,
    ttl: float | None,
    max_hold: float | None,
    timeout: float,
    abort: Abort | None = None,
) -> Iterator[Lease]:
    """Run the block under *keys*; *name* is what is holding them, for people.

    If they are lost, what the block runs by *abort* is aborted.
    """
    here = runtime(app)
    held = _held(here, keys, mode, limit)
    who = f"{name}@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
    subject = Subject(who, name, name)
    claim = Claim(
        key="",
        task=f"{who}:0:0",
        nonce=uuid.uuid4().hex,
        ttl=here.lease_time(ttl),
        mode=mode,
        limit=limit,
        wait=Wait.PLACE if timeout else Wait.NOT,
        patience=int(PATIENCE * SECOND),
        lock_delay=int(here.settings.lock_delay * SECOND),
    )
    claims = [claim for claim in claims_of(keys, claim) if claim.key not in held]

    told = Once()

    def tell_lost(term: Term, reason: str) -> None:
        if told.first(term.key):
            here.sinks.emit(Lost(subject, term.key, reason))

    def lost(term: Term, reason: str) -> None:
        if abort is not None:
            abort.strike(term.key, reason)
        tell_lost(term, reason)

    keeping = Keeping(max_hold or here.settings.max_hold, lost)
    started = time.monotonic()
    taken: Lease | None = None
    try:
        taken = _take(here, subject, claims, keeping, timeout) if claims else None
        acquired = taken.terms if taken else ()
        terms = sorted((*held.values(), *acquired), key=lambda term: term.key)
        lease = here.manager.lease(terms, keys.parents)
        if taken:
            tokens = tuple(taken.fencing_tokens.get(key, 0) for key in taken.keys)
            took = time.monotonic() - started
            here.sinks.emit(Acquired(subject, taken.keys, tokens, took, taken.ttl))
        with holding(lease, here.backend):
            lease.check()  # it may have stood still since it asked
            yield lease
    finally:
        try:
            if taken:
                _leave(here, taken, subject, started, tell_lost)
                claims.clear()
        finally:
            # A soft time limit can strike anywhere, here too; the keeper would renew for ever.
            here.manager.take_back(claims)


def _held(here: Runtime, keys: Keys, mode: Mode, limit: int) -> dict[str, Term]:
    """What the running code holds already of *keys*.

    Raises :exc:`LockContended` for a key that it holds otherwise, or beside more than *limit*:
    waiting would be waiting for itself. Alone on a parent it may do below it what it likes.
    Raises :exc:`LockLost` for a key that it has lost.
    """
    held = {key: term for key in keys.all if (term := held_term(key, here.backend))}
    for key, term in held.items():
        if term.lost:
            raise LockLost(key, term.lost)
        is_parent = key in keys.parents
        alike = term.claim.mode is (Mode.SHARED if is_parent else mode)
        alike = alike and term.claim.limit <= limit
        alone = term.claim.mode is Mode.EXCLUSIVE and term.claim.limit == 1
        if not (alike or (is_parent and alone)):
            left = max(0.0, term.trusted_until - term.monotonic())
            raise LockContended(key, task_id_of(term.claim.task), left)
    return held


def _take(
    here: Runtime, subject: Subject, claims: list[Claim], keeping: Keeping, timeout: float
) -> Lease:
    """Hold *claims*; when that is refused nothing is held, and none of them is left."""
    started = time.monotonic()
    asked = ASK_FIRST
    told = False
    while True:
        try:
            answer = here.manager.acquire(claims, keeping)
        except BackendUnavailable:
            claims.clear()  # taken back as far as it goes; to wait for the same again helps nobody
            raise
        if isinstance(answer, Lease):
            return answer
        waited = time.monotonic() - started
        refusal = _refusal(answer, waited if timeout else None)
        if not told:
            here.sinks.emit(Contended(subject, refusal.key, refusal.holder, 0, waited))
            told = True
        if waited >= timeout:
            claims.clear()
            if isinstance(refusal, LockTimeout):
                here.sinks.emit(TimedOut(subject, refusal.key, waited))
            raise refusal
        time.sleep(min(asked * CHANCE.uniform(0.5, 1.0), timeout - waited))
        asked = min(asked * 2, ASK_LAST)


def _refusal(refused: Refused, waited: float | None) -> LockContended:
    key, verdict = refused.claim.key, refused.verdict
    who: str | None = None
    seconds = 0.0
    if isinstance(verdict, Busy | Same) and verdict.holder is not None:
        who, seconds = task_id_of(verdict.holder.task), verdict.left / SECOND
    if waited is None:
        return LockContended(key, who, seconds)
    return LockTimeout(key, who, seconds, waited)


def _leave(
    here: Runtime, taken: Lease, subject: Subject, started: float, tell_lost: OnLost
) -> None:
    try:
        here.manager.release(taken, Outcome.OVER)
    except BackendUnavailable as exc:
        # The lease ends by itself; the block's own result or error must not be hidden.
        here.sinks.emit(Unavailable(subject, str(exc)))
    else:
        held = time.monotonic() - started
        here.sinks.emit(Released(subject, taken.keys, Outcome.OVER, held))
    finally:
        for term in taken.terms:
            if term.lost:  # noticed only now: the process was stopped, or renewal starved
                tell_lost(term, term.lost)
        taken.give_back()
