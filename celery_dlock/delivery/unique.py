"""A unique task in the worker: whether it is still the one that lives, and when its claim ends.

The store hears of it after the lock: what was given then can be given back, and what waits or runs
there is what others are shown. A task that may have begun a run before goes on, whoever lives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from celery.app.task import Context

from celery_dlock.core.state import task_id_of
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.definition import TaskWithLock
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.messages.headers import identity
from celery_dlock.messages.unique import UniqueTerms, duplicate_of
from celery_dlock.runtime import runtime, this_process

logger = logging.getLogger("celery_dlock")


@dataclass(slots=True)
class UniqueRun:
    """The claim of one delivery, whose task has that identity; ``begun`` if it may have run before.

    ``known`` is what stood in the store when it was last asked, and ``asked`` whether it was as the
    task was published. It is no ``concern`` of the delivery once it has ended, or is another's.
    """

    claims: UniqueClaims
    terms: UniqueTerms
    task: str
    name: str
    where: str
    asked: bool
    begun: bool
    concern: bool = field(init=False)
    known: bytes | None = field(init=False)
    _at: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.known = self.terms.stands
        self.concern = not (self.begun and self.terms.until == "start")

    @classmethod
    def of(
        cls,
        task: TaskWithLock,
        request: Context,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        begun: bool,
    ) -> Self | None:
        """Of a task that is unique, or was as it was published; not of one that is a duplicate."""
        headers, unique = vars(request), task.lock_definition.unique
        terms = UniqueTerms.read(headers)
        asked = terms is not None
        if terms is None:
            if unique is None or request.is_eager or duplicate_of(headers) is not None:
                return None
            terms = UniqueTerms.of(unique, unique.name(args, kwargs))
        claims, where = UniqueClaims(runtime(task.app).backend), this_process(request.hostname)
        return cls(claims, terms, identity(request), task.name, where, asked, begun)

    def waits(self, key: str = "", due: float = 0.0) -> str | None:
        """Its message waits at *key* in the lock store, or in the broker until it is *due*.

        The id of another that lives, if this one is not to run for that.
        """
        if self._at == key and not due:  # it asks for its lock again and again
            return None
        self._at = key
        return self._meet(key, acked=bool(key), heard=due or time.time())

    def holds(self, key: str, *, acked: bool) -> str | None:
        """It has the lock at *key*, and its body is next; *acked* if the broker has no message.

        The same id as above.
        """
        if self.terms.until == "done" or not self.concern:
            return self._meet(key, acked=acked, heard=time.time())
        name, task_id = self.terms.name, task_id_of(self.task)
        self.known, other = self.claims.begin(name, task_id, self.terms.ttl, self.known)
        self.concern = False
        return other

    def _meet(self, key: str, *, acked: bool, heard: float) -> str | None:
        if not self.concern:
            return None
        mine = UniqueClaim(self.task, self.name, self.where, heard, key, acked)
        self.known, other = self.claims.meet(self.terms.name, mine, self.terms.ttl, self.known)
        self.concern = other is None
        return None if self.begun else other

    def parked(self, key: str) -> None:
        """The lock store has its message, at *key*, and nobody else."""
        try:
            self.waits(key)
        except BackendUnavailable as exc:
            self._not_told(exc)

    def goes_back(self, due: float) -> None:
        """The broker has its message, or its next attempt, and delivers it at *due*."""
        try:
            self.waits(due=due)
        except BackendUnavailable as exc:
            self._not_told(exc)

    def ends(self) -> None:
        """Its task has ended."""
        if not self.concern:
            return
        self.concern = False
        try:
            self.claims.end(self.terms.name, task_id_of(self.task), self.terms.ttl, self.known)
        except BackendUnavailable as exc:
            self._not_told(exc)

    def _not_told(self, exc: BackendUnavailable) -> None:
        """The store shows soon that it neither runs nor waits, and a call is believed again."""
        logger.warning("the unique claim %s stays for a while: %s", self.terms.name, exc)
