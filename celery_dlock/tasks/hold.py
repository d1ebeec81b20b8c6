"""Locks without a message: ``lock()`` in web handlers and scripts, and direct calls of a task.

They take the very locks that tasks take. A key that the running code holds already is not taken
again: the block runs under the lease that is there.
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from celery import current_app

from celery_dlock.core.checks import check_limit, duration
from celery_dlock.core.current import held_term, holding
from celery_dlock.core.events import Acquired, Lost, Released, Subject, Unavailable
from celery_dlock.core.keys import canonical
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.manager import Keeping, Refused
from celery_dlock.core.state import Busy, Claim, Mode, Outcome, Same, Wait, task_id_of
from celery_dlock.errors import BackendUnavailable, ConfigurationError, LockContended, LockTimeout
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
) -> AbstractContextManager[Lease]:
    """Hold *key* for the time of a ``with`` block, outside tasks or inside them.

    It waits for up to *timeout* seconds (0: not at all). *ttl* is the length of the lease, which
    is renewed in the background while the block runs. With several keys all are taken or none.

    Raises :exc:`~celery_dlock.ConfigurationError` for what makes no sense;
    :exc:`~celery_dlock.LockContended` at once with ``timeout=0``, or when the running code
    holds the key in another mode; :exc:`~celery_dlock.LockTimeout` when time is over; and
    :exc:`~celery_dlock.BackendUnavailable` when the store does not answer.
    """
    keys = [key] if isinstance(key, str) else list(key)
    if not keys:
        raise ConfigurationError("a lock needs at least one key, got an empty list")
    check_limit(limit, shared=shared)
    return hold(
        app or current_app,
        sorted({canonical(k) for k in keys}),
        name="lock()",
        mode=Mode.SHARED if shared else Mode.EXCLUSIVE,
        limit=limit,
        ttl=None if ttl is None else duration("ttl", ttl),
        max_hold=None,
        timeout=duration("timeout", timeout, zero=True),
    )


@contextmanager
def hold(
    app: Any,
    keys: Sequence[str],
    *,
    name: str,
    mode: Mode,
    limit: int,
    ttl: float | None,
    max_hold: float | None,
    timeout: float,
) -> Iterator[Lease]:
    """Run the block under *keys*; *name* is what is holding them, for people."""
    here = runtime(app)
    held = {term.key: term for key in keys if (term := _held_alike(here, key, mode))}
    who = f"{name}@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
    subject = Subject(who, name, name)
    claims = [
        Claim(
            key=key,
            task=f"{who}:0:0",
            nonce=uuid.uuid4().hex,
            ttl=int((ttl or here.settings.ttl) * SECOND),
            mode=mode,
            limit=limit,
            wait=Wait.PLACE if timeout else Wait.NOT,
            patience=int(PATIENCE * SECOND),
            lock_delay=int(here.settings.lock_delay * SECOND),
        )
        for key in keys
        if key not in held
    ]
    keeping = Keeping(
        max_hold or here.settings.max_hold,
        lambda term, reason: here.sinks.emit(Lost(subject, term.key, reason)),
    )
    started = time.monotonic()
    taken: Lease | None = None
    try:
        taken = _take(here, claims, keeping, timeout) if claims else None
        acquired = taken.terms if taken else ()
        terms = sorted((*held.values(), *acquired), key=lambda term: term.key)
        lease = Lease(tuple(terms), here.backend.guarantee)
        if taken:
            tokens = tuple(taken.fencing_tokens.values())
            here.sinks.emit(Acquired(subject, taken.keys, tokens, time.monotonic() - started))
        with holding(lease, here.backend):
            yield lease
    finally:
        try:
            if taken:
                _leave(here, taken, subject, started)
                claims.clear()
        finally:
            # A soft time limit can strike anywhere, here too; the keeper would renew for ever.
            here.manager.take_back(claims)


def _held_alike(here: Runtime, key: str, mode: Mode) -> Term | None:
    term = held_term(key, here.backend)
    if term is not None and term.claim.mode is not mode:
        # Waiting would be waiting for itself.
        left = max(0.0, term.trusted_until - term.monotonic())
        raise LockContended(key, task_id_of(term.claim.task), left)
    return term


def _take(here: Runtime, claims: list[Claim], keeping: Keeping, timeout: float) -> Lease:
    """Hold *claims*; when that is refused nothing is held, and none of them is left."""
    started = time.monotonic()
    asked = ASK_FIRST
    while True:
        answer = here.manager.acquire(claims, keeping)
        if isinstance(answer, Lease):
            return answer
        waited = time.monotonic() - started
        if waited >= timeout:
            claims.clear()
            raise _refusal(answer, waited if timeout else None)
        time.sleep(min(asked * random.uniform(0.5, 1.0), timeout - waited))
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


def _leave(here: Runtime, taken: Lease, subject: Subject, started: float) -> None:
    try:
        here.manager.release(taken, Outcome.OVER)
    except BackendUnavailable as exc:
        # The lease ends by itself; the block's own result or error must not be hidden.
        here.sinks.emit(Unavailable(subject, str(exc)))
        return
    finally:
        taken.give_back()
    held = time.monotonic() - started
    here.sinks.emit(Released(subject, taken.keys, Outcome.OVER, held))
