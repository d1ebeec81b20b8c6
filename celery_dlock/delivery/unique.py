"""A unique task in the worker: whether it is still the one that lives, and when its claim ends.

The store hears of it after the lock: what waits or runs there is what others are shown. A task
that may have begun a run before goes on, whoever lives; so does one of whose claim nobody tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, assert_never

from celery.app.task import Context

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Busy, Drop, End, Park, Reason, Same, task_id_of
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.manager import Refusal
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.headers import identity, predecessor, storable
from celery_dlock.messages.unique import UniqueTerms, duplicate_of
from celery_dlock.runtime import Runtime, runtime, this_process

logger = logging.getLogger("celery_dlock")


@dataclass(slots=True)
class UniqueRun:
    """The claim of one delivery, whose task has that identity; ``begun`` if it may have run before,
    ``retried`` if it has.

    ``known`` is what stood in the store when it was last asked, and ``asked`` whether it was as the
    task was published; if it was not, its period begins here, and ends at ``period_ends``. The task
    that it ``follows`` in a chain ends, and is no other one that lives. It is no ``concern`` of the
    delivery once it has ended, or is another's. A message of the same task may be on its way that
    was published ``again``.
    """

    here: Runtime
    terms: UniqueTerms
    task: str
    name: str
    where: str
    asked: bool
    begun: bool
    retried: bool
    follows: str = ""
    period_ends: float = 0.0
    claims: UniqueClaims = field(init=False)
    concern: bool = field(init=False)
    again: bool = field(default=False, init=False)
    known: bytes | None = field(init=False)
    _at: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.claims = UniqueClaims(self.here.backend)
        self.known = self.terms.stored
        self.concern = not (self.retried and self.terms.until == "start")

    @classmethod
    def of(
        cls,
        task: TaskWithLock,
        request: Context,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Self | None:
        """Of a task that is unique, or was as it was published; not of one that is a duplicate."""
        headers, unique = vars(request), task.lock_definition.unique
        terms, period_ends = UniqueTerms.read(headers), 0.0
        asked = terms is not None
        if terms is None:
            if unique is None or request.is_eager or duplicate_of(headers) is not None:
                return None
            if unique.options.newest_wins:
                return None
            terms = UniqueTerms.of(unique, unique.name(args, kwargs))
            period = unique.options.period
            period_ends = time.time() + period if period else 0.0
        here, where = runtime(task.app), this_process(request.hostname)
        retried = bool(request.retries)
        who = identity(request)
        follows = predecessor(request)
        return cls(
            here, terms, who, task.name, where, asked, retried, retried, follows, period_ends
        )

    def arrives(self) -> str | None:
        """The id of another that lives, if nobody has asked when this one was published."""
        if self.asked or self.begun:
            return None
        self.asked = True
        try:
            return self._unless_before(self.claims.other(self.terms.name, task_id_of(self.task)))
        except BackendUnavailable as exc:
            _not_told(self.terms, exc)
            return None

    def waits(self, key: str = "", due: float = 0.0) -> str | None:
        """Its message waits at *key* in the lock store, or in the broker until it is *due*.

        The id of another that lives, if this one is not to run for that.
        """
        if self._at == key and not due:  # it asks for its lock again and again
            return None
        if self.begun and self.terms.until == "start":  # what it had may have ended before
            return None
        self._at = key
        return self._meet(key, acked=bool(key), heard=due or time.time())

    def retries(self, task: str, due: float) -> None:
        """Its next attempt, *task*, is published, and *due* then."""
        if self.concern:
            self.task = task
            self.waits(due=due)

    def holds(self, key: str, *, acked: bool) -> str | None:
        """It has the lock at *key*, and its body is next; *acked* if the broker has no message.

        The same id as above.
        """
        if self.terms.newest_wins:
            self.ends()
            return None
        other = None
        if self.terms.until == "done" or self.period_ends:
            other = self._meet(key, acked=acked, heard=time.time())
        return other or self._starts()

    def refused(self, key: str, verdict: Refusal) -> str | None:
        """It has asked for its lock, and the *verdict* at *key* is that it does not get it.

        The same id as above.
        """
        match verdict:
            case Park():
                self.waits(key)
            case Busy():
                return self.waits()
            case Drop(reason=Reason.DONE):
                self.ends(self.task)  # a copy: whoever was to say so has died
            case Drop() | End() | Same():
                pass
            case _:
                assert_never(verdict)
        return None

    def _starts(self) -> str | None:
        if self.terms.until == "done" or not self.concern:
            return None
        self.concern = False
        name, task_id = self.terms.name, task_id_of(self.task)
        try:
            met = self.claims.begin(name, task_id, self.terms.ttl, self.known)
        except BackendUnavailable as exc:
            end = partial(self.claims.end, name, task_id, self.terms.ttl, self.known)
            _tell_later(self.here, self.terms, exc, end)
            return None
        self.again |= met.again
        return None if self.begun else self._unless_before(met.another)

    def _unless_before(self, other: str | None) -> str | None:
        return None if other == self.follows else other

    def _meet(self, key: str, *, acked: bool, heard: float) -> str | None:
        if not self.concern or self.terms.newest_wins:
            return None
        mine = UniqueClaim(self.task, self.name, self.where, heard, key, acked, self.period_ends)
        try:
            self.known, met = self.claims.meet(self.terms.name, mine, self.terms.ttl, self.known)
        except BackendUnavailable as exc:
            _not_told(self.terms, exc)
            return None
        self.concern, self.again = met.another is None, met.again
        return None if self.begun else self._unless_before(met.another)

    @property
    def remembers(self) -> int:
        """For how many microseconds at least the store is to remember that this attempt is done."""
        return round(self.terms.ttl * SECOND) if self.again else 0

    def ends(self, attempt: str = "") -> None:
        """Its task has ended, or that *attempt*, which the claim may be of."""
        if self.concern:
            self.concern = False
            name, task_id = self.terms.name, task_id_of(self.task)
            end = partial(self.claims.end, name, task_id, self.terms.ttl, self.known, attempt)
            _tell(self.here, self.terms, end)

    def revoked(self) -> None:
        """Its task was revoked while it waited."""
        if self.begun:
            self.ends()
        elif self.concern:
            self.concern = False
            forget = partial(self.claims.forget, self.terms.name, task_id_of(self.task))
            _tell(self.here, self.terms, forget)


def end_unique(app: Any, headers: Mapping[str, Any], *, began: bool = True) -> None:
    """The task of the message with *headers* is over, and has not come as far as its lock.

    If no attempt of it *began*, its period ends with it.
    """
    terms = UniqueTerms.read(headers)
    if terms is None:
        return
    here, task_id = runtime(app), storable(headers["id"])
    claims = UniqueClaims(here.backend)
    if began:
        _tell(here, terms, partial(claims.end, terms.name, task_id, terms.ttl, terms.stored))
    else:
        _tell(here, terms, partial(claims.forget, terms.name, task_id))


def _tell(here: Runtime, terms: UniqueTerms, ends: Callable[[], object]) -> None:
    try:
        ends()
    except BackendUnavailable as exc:
        _tell_later(here, terms, exc, ends)


def _tell_later(
    here: Runtime, terms: UniqueTerms, exc: BackendUnavailable, ends: Callable[[], object]
) -> None:
    """A claim that nobody ends swallows calls for a minute."""
    _not_told(terms, exc)
    here.manager.tell_later(f"the unique claim {terms.name} has ended", ends)


def _not_told(terms: UniqueTerms, exc: BackendUnavailable) -> None:
    """The task goes on, under its lock. Calls are answered with what was said before, as long as
    that is believed.
    """
    logger.info("the unique claim %s was not updated: %s", terms.name, exc)
