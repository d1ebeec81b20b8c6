"""Locks without a message: ``lock()`` in web handlers and scripts, and direct calls of a task.

They take the very locks that tasks take. A key that the running code holds already is not taken
again: the block runs under the lease that is there.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any

from celery import current_app

from celery_dlock.core.access import Access, Keys, Wanted, entries
from celery_dlock.core.backoff import pauses
from celery_dlock.core.checks import duration, quoted
from celery_dlock.core.events import Contended, Subject, TimedOut
from celery_dlock.core.keys import canonical
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.state import Busy, Claim, Mode, Outcome, Same, WaitMode, task_id_of
from celery_dlock.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockContended,
    LockLost,
    LockTimeout,
)
from celery_dlock.locks.current import held_term, holding
from celery_dlock.locks.hold import Hold, Strike
from celery_dlock.locks.several import Refused
from celery_dlock.messages.claims import claims_of
from celery_dlock.runtime import Runtime, runtime, this_process

#: What looks like a field of a template, whose f or format() was forgotten.
_FIELD = re.compile(r"\{(?:\w+(?:\.\w+|\[[^\[\]]+\])*)?\}")

#: Seconds for which a place is kept: more than the longest pause between two questions.
PLACE_TTL = 1.0


def lock(
    key: Wanted | Sequence[Wanted],
    *,
    app: Any = None,
    ttl: float | None = None,
    timeout: float = 5.0,
    limit: int = 1,
    shared: bool = False,
    parents: str | Sequence[str] = (),
    cooldown: float | None = None,
) -> Block:
    """Hold *key* for the time of a ``with`` block, outside tasks or inside them.

    It waits for up to *timeout* seconds (0: not at all). *ttl* is the length of the lease, which
    is renewed in the background while the block runs. With several keys, of which each may be a
    :class:`~celery_dlock.Limit` or :class:`~celery_dlock.Shared`, all are taken or none.
    *parents* are keys that the block holds for reading: whoever takes one of them exclusively
    waits for the block and holds it off. For *cooldown* seconds from its beginning on nobody else
    gets the key, also when the block has ended by then.

    Raises :exc:`~celery_dlock.ConfigurationError` for what makes no sense;
    :exc:`~celery_dlock.LockContended` at once with ``timeout=0``, or when the running code
    holds the key in another mode; :exc:`~celery_dlock.LockLost` when it held the key and has lost
    it, or stood still before the block began; :exc:`~celery_dlock.LockTimeout` when time is over;
    and :exc:`~celery_dlock.BackendUnavailable` when the store does not answer.
    """
    own = entries(key, limit, shared=shared, cooldown=cooldown)
    if not own:
        raise ConfigurationError("a lock needs at least one key, got an empty list")
    above = [parents] if isinstance(parents, str) else parents
    held = partial(
        locked_block,
        app or current_app,
        Keys.of(
            [(canonical(_literal(k)), access) for k, access in own],
            (canonical(_literal(k)) for k in above),
        ),
        name="lock()",
        ttl=None if ttl is None else duration("ttl", ttl),
        max_hold=None,
        timeout=duration("timeout", timeout, zero=True),
    )
    return Block(held)


class Block:
    """What :func:`lock` returns: for ``with``; or for code that cannot use it, :meth:`acquire` and
    :meth:`release`, which any thread may call.
    """

    def __init__(self, held: Callable[..., AbstractContextManager[Lease]]) -> None:
        self._held = held
        self._entered: AbstractContextManager[Lease] | None = None

    def acquire(self) -> Lease:
        """Take the lock, as ``with`` does. Until it is released it is renewed as long as this
        process lives, and it expires when that ends: nothing is released at its exit.

        The lease is not the current one: hand it on, as in ``admit(connection, lease)``. Nor is the
        key re-entrant under it.

        Raises what :func:`lock` does, and :exc:`RuntimeError` for one that is acquired already.
        """
        lease = self._enter(self._held(current=False))
        _UNRELEASED.add(self)
        return lease

    def release(self) -> None:
        """Release what :meth:`acquire` has taken, and nothing that another one has by now.

        Raises :exc:`RuntimeError` for one that is not acquired, or is released already.
        """
        _UNRELEASED.discard(self)
        self._leave(None, None, None)

    def __enter__(self) -> Lease:
        return self._enter(self._held())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._leave(kind, error, traceback)

    def _enter(self, block: AbstractContextManager[Lease]) -> Lease:
        if self._entered is not None:
            raise RuntimeError("this lock() is acquired already: whoever else wants it makes one")
        lease = block.__enter__()
        self._entered = block
        return lease

    def _leave(self, *error: Any) -> bool | None:
        block, self._entered = self._entered, None
        if block is None:
            raise RuntimeError("this lock() is not acquired, or is released already")
        return block.__exit__(*error)


#: What is not to be released by the garbage collector, when only its lease is kept.
_UNRELEASED: set[Block] = set()


def _literal(text: object) -> str:
    """*text*, if it is a key and no template: here nobody fills in a field."""
    if not isinstance(text, str):
        raise ConfigurationError(f"lock() takes a text, or a list of them, got {quoted(text)}")
    field = _FIELD.search(text)
    if field is None:
        return text
    raise ConfigurationError(
        f"lock() takes a key as it is, and {field[0]} in {quoted(text)} would be the same for all: "
        f"put an f before the quotes (a brace that is meant as one is written %7B)"
    )


@contextmanager
def locked_block(
    app: Any,
    keys: Keys,
    *,
    name: str,
    ttl: float | None,
    max_hold: float | None,
    timeout: float,
    strike: Strike | None = None,
    current: bool = True,
) -> Iterator[Lease]:
    """Run the block under *keys*; *name* is what is holding them, for people.

    Its lease is the *current* one of the running code. *strike* is called at once when a key is
    lost, with that and the reason.
    """
    here = runtime(app)
    held = _held(here, keys)
    who = f"{name}@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"
    subject = Subject(who, name, name)
    claim = Claim(
        key="",
        task=f"{who}:0:0",
        nonce=uuid.uuid4().hex,
        ttl=here.lease_time(ttl),
        wait=WaitMode.PLACE if timeout else WaitMode.NOT,
        patience=int(PLACE_TTL * SECOND),
        lock_delay=int(here.settings.lock_delay * SECOND),
        name=name,
        where=this_process(),
    )
    claims = [claim for claim in claims_of(keys, claim) if claim.key not in held]

    hold = Hold(here.manager, here.sinks.emit, subject, strike)
    try:
        taken = _take(here, hold, claims, max_hold, timeout) if claims else ()
        terms = sorted((*held.values(), *taken), key=lambda term: term.claim.order)
        lease = here.manager.lease(terms, keys.parents)
        with holding(lease, here.backend) if current else nullcontext():
            lease.check()  # it may have stood still since it asked
            yield lease
    finally:
        try:
            hold.give_back(Outcome.OVER)
        except BaseException:
            # A soft time limit can strike anywhere, here too; the keeper would renew for ever.
            hold.give_back(Outcome.OVER)
            raise


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


def _take(
    here: Runtime, hold: Hold, claims: list[Claim], max_hold: float | None, timeout: float
) -> tuple[Term, ...]:
    """Hold *claims*; when that is refused nothing is held, and nothing owed."""
    started = time.monotonic()
    told = False
    pause = pauses()
    while True:
        try:
            answer = hold.ask(claims, max_hold or here.settings.max_hold)
        except BackendUnavailable:
            hold.owe(())  # taken back as far as it goes; to wait for the same again helps nobody
            raise
        waited = time.monotonic() - started
        if isinstance(answer, Lease):
            hold.taken(answer, waited)
            return answer.terms
        refusal = _refusal(answer, waited if timeout else None)
        if not told:
            hold.emit(Contended(hold.subject, refusal.key, refusal.holder, 0, waited))
            told = True
        if waited >= timeout:
            hold.owe(())
            if isinstance(refusal, LockTimeout):
                hold.emit(TimedOut(hold.subject, refusal.key, waited))
            raise refusal
        time.sleep(min(next(pause), timeout - waited))


def _refusal(refused: Refused, waited: float | None) -> LockContended:
    key, verdict = refused.claim.key, refused.verdict
    who: str | None = None
    seconds = 0.0
    if isinstance(verdict, Busy | Same):
        holder, seconds = verdict.holder, verdict.left / SECOND
        who = None if holder is None else task_id_of(holder.task)
    if waited is None:
        return LockContended(key, who, seconds)
    return LockTimeout(key, who, seconds, waited)
