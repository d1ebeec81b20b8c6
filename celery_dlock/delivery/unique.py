"""A unique task in the worker: whether it is still the one that lives, and when its claim ends.

The store hears of it after the lock: what waits or runs there is what others are shown. A task
that may have begun a run before goes on, even if another one lives; so does one whose claim cannot
be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, assert_never

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Busy, Drop, End, Park, Reason, Same, task_id_of
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.refused import Refusal
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.headers import predecessor, storable
from celery_dlock.messages.unique import UniqueTerms, duplicate_of
from celery_dlock.runtime import Runtime, runtime, this_process

logger = logging.getLogger("celery_dlock")


@dataclass(slots=True)
class UniqueRun:
    """The claim of one delivery, whose task has that identity; ``begun`` if it may have run before,
    ``retried`` if it has.

    ``stored`` is what stood in the store when it was last asked, and ``checked`` whether it was as
    the task was published; if it was not, its period begins here, and ends at ``period_ends``. The
    task that it ``follows`` in a chain ends, and is no other one that lives. The claim is not
    ``owned`` by the delivery once it has ended, or is another's. A message of the same task may be
    on its way that was published ``again``.
    """

    runtime: Runtime
    terms: UniqueTerms
    task: str
    name: str
    worker: str
    checked: bool = True
    begun: bool = False
    retried: bool = False
    follows: str = ""
    period_ends: float = 0.0
    claims: UniqueClaims = field(init=False)
    owned: bool = field(init=False)
    again: bool = field(default=False, init=False)
    stored: bytes | None = field(init=False)
    _waits_at: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.claims = self.runtime.unique_claims
        self.stored = self.terms.stored
        self.owned = not (self.retried and self.terms.until == "start")

    @classmethod
    def of(
        cls,
        process: Runtime,
        task: TaskWithLock,
        attempt: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Self | None:
        """The run of a task that is unique, or was when published; ``None`` for a duplicate."""
        request, unique = task.request, task.lock_definition.unique
        headers = vars(request)
        terms, period_ends = UniqueTerms.read(headers), 0.0
        checked = terms is not None
        if terms is None:
            if unique is None or request.is_eager or duplicate_of(headers) is not None:
                return None
            terms = UniqueTerms.of(unique, unique.name(args, kwargs))
            period = unique.options.period
            period_ends = time.time() + period if period else 0.0
        retried = bool(request.retries)
        return cls(
            runtime=process,
            terms=terms,
            task=attempt,
            name=task.name,
            worker=this_process(request.hostname),
            checked=checked,
            begun=retried,
            retried=retried,
            follows=predecessor(request),
            period_ends=period_ends,
        )

    def arrives(self) -> str | None:
        """The id of another that lives, if nobody has asked when this one was published."""
        if self.checked or self.begun:
            return None
        self.checked = True
        try:
            return self._unless_before(self.claims.other(self.terms.name, task_id_of(self.task)))
        except BackendUnavailable as exc:
            _log_not_updated(self.terms, exc)
            return None

    def waits(self, key: str = "", due: float = 0.0) -> str | None:
        """Note that its message waits at *key* in the lock store, or in the broker until *due*.

        The id of another that lives, if this one is not to run for that.
        """
        if self._waits_at == key and not due:  # it asks for its lock again and again
            return None
        if self.begun and self.terms.until == "start":  # what it had may have ended before
            return None
        self._waits_at = key
        return self._meet(key, acked=bool(key), heard=due or time.time())

    def retries(self, task: str, due: float) -> None:
        """Note that its next attempt, *task*, is published, and when that is *due*."""
        if self.owned:
            self.task = task
            self.waits(due=due)

    def holds(self, key: str, *, acked: bool) -> str | None:
        """Note that it has the lock at *key*; *acked* if the broker has no message.

        The same id as above.
        """
        living = None
        if self.terms.until == "done" or self.period_ends:
            living = self._meet(key, acked=acked, heard=time.time())
        return living or self._starts()

    def refused(self, key: str, verdict: Refusal) -> str | None:
        """Note that it was refused its lock, with that *verdict* at *key*.

        The same id as above.
        """
        match verdict:
            case Park():
                self.waits(key)
            case Busy():
                return self.waits()
            case Drop(reason=Reason.DONE):
                self.ends(self.task)  # the delivery that was to end its claim has died
            case Drop() | End() | Same():
                pass
            case _:
                assert_never(verdict)
        return None

    def _starts(self) -> str | None:
        if self.terms.until == "done" or not self.owned:
            return None
        self.owned = False
        name, task_id = self.terms.name, task_id_of(self.task)
        try:
            answer = self.claims.begin(name, task_id, self.terms.ttl, self.stored)
        except BackendUnavailable as exc:
            end = partial(self.claims.end, name, task_id, self.terms.ttl, self.stored)
            _tell_later(self.runtime, self.terms, exc, end)
            return None
        self.again |= answer.again
        return None if self.begun else self._unless_before(answer.another)

    def _unless_before(self, living: str | None) -> str | None:
        return None if living == self.follows else living

    def _meet(self, key: str, *, acked: bool, heard: float) -> str | None:
        if not self.owned:
            return None
        claim = UniqueClaim(self.task, self.name, self.worker, heard, key, acked, self.period_ends)
        try:
            self.stored, answer = self.claims.meet(
                self.terms.name, claim, self.terms.ttl, self.stored
            )
        except BackendUnavailable as exc:
            _log_not_updated(self.terms, exc)
            return None
        self.owned, self.again = answer.another is None, answer.again
        return None if self.begun else self._unless_before(answer.another)

    @property
    def remembers(self) -> int:
        """For how many microseconds at least the store is to remember that this attempt is done."""
        return round(self.terms.ttl * SECOND) if self.again else 0

    def ends(self, attempt: str = "") -> None:
        """End the claim: its task has ended, or that *attempt*, which the claim may be of."""
        if self.owned:
            self.owned = False
            name, task_id = self.terms.name, task_id_of(self.task)
            end = partial(self.claims.end, name, task_id, self.terms.ttl, self.stored, attempt)
            _tell(self.runtime, self.terms, end)

    def revoked(self) -> None:
        """End the claim of a task that was revoked while it waited."""
        if self.begun:
            self.ends()
        elif self.owned:
            self.owned = False
            forget = partial(self.claims.forget, self.terms.name, task_id_of(self.task))
            _tell(self.runtime, self.terms, forget)


def end_unique(app: Any, headers: Mapping[str, Any], *, began: bool = True) -> None:
    """End the claim of a task that is over, and has not come as far as its lock.

    If no attempt of it *began*, its period ends with it.
    """
    terms = UniqueTerms.read(headers)
    if terms is None:
        return
    process, task_id = runtime(app), storable(headers["id"])
    claims = process.unique_claims
    if began:
        _tell(process, terms, partial(claims.end, terms.name, task_id, terms.ttl, terms.stored))
    else:
        _tell(process, terms, partial(claims.forget, terms.name, task_id))


def _tell(process: Runtime, terms: UniqueTerms, ends: Callable[[], object]) -> None:
    try:
        ends()
    except BackendUnavailable as exc:
        _tell_later(process, terms, exc, ends)


def _tell_later(
    process: Runtime, terms: UniqueTerms, exc: BackendUnavailable, ends: Callable[[], object]
) -> None:
    """In the background: a claim that nobody ends swallows calls for a minute."""
    _log_not_updated(terms, exc)
    process.manager.tell_later(f"the unique claim {terms.name} has ended", ends)


def _log_not_updated(terms: UniqueTerms, exc: BackendUnavailable) -> None:
    """The task goes on, under its lock. Until it expires the old claim answers calls."""
    logger.info("the unique claim %s was not updated: %s", terms.name, exc)
