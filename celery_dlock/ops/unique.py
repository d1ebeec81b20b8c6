"""Unique tasks that live, and under which claim."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

from celery_dlock.core.unique import UniqueClaim
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend

#: The claims that are looked through for one task or key.
ALL_CLAIMS = 100_000


@dataclass(frozen=True, slots=True)
class Living:
    """The task that lives under a unique ``claim``, or is remembered for its period if ``over``.

    The broker has its message, published or due at ``heard``, unless the lock store has it at
    ``key``.
    """

    claim: str
    task_id: str
    name: str
    where: str
    key: str
    heard: datetime
    over: bool

    @classmethod
    def of(cls, name: str, claim: UniqueClaim) -> Self:
        values = asdict(claim)
        fields = {field: values[field] for field in ("name", "where", "key", "over")}
        return cls(
            claim=name,
            task_id=claim.task_id,
            heard=_instant(claim.heard),
            **fields,
        )

    def sentence(self) -> str:
        """What goes on after "the task"."""
        lives = "is remembered for its period" if self.over else "lives"
        return f"{lives} under the unique claim {self.claim!r}"


def living(
    store: LockBackend,
    limit: int = ALL_CLAIMS,
    *,
    task_id: str = "",
    key: str = "",
    match: str = "",
) -> list[Living]:
    """The unique tasks that live, up to *limit*, by their claims: of that task, at that lock key,
    with *match* in the name of the claim.

    Raises :exc:`~celery_dlock.BackendUnavailable`.
    """
    claims: list[Living] = []
    for name, text in store.swapped(ALL_CLAIMS):
        with suppress(ValueError, TypeError):  # what cannot be read is told to whoever needs it
            claim = Living.of(name, UniqueClaim.decode(text))
            wanted = task_id in ("", claim.task_id) and key in ("", claim.key)
            if wanted and match in name:
                claims.append(claim)
    return sorted(claims, key=lambda claim: claim.claim)[:limit]


@dataclass(frozen=True, slots=True)
class LivingList:
    """The first of those that live, and whether there are ``more``; it was so at *now*, here."""

    living: tuple[Living, ...]
    more: bool
    now: datetime

    @classmethod
    def of(cls, app: Any, limit: int) -> Self:
        """Raises :exc:`~celery_dlock.BackendUnavailable`."""
        claims = living(runtime(app).existing_store(), limit + 1)
        return cls(tuple(claims[:limit]), len(claims) > limit, datetime.now(UTC))


def end(app: Any, name: str, task_id: str) -> bool:
    """End the claim *name* of that task, as if it had ended; ``False`` if it has none.

    The next call is published. Raises :exc:`~celery_dlock.BackendUnavailable`.
    """
    return UniqueClaims(runtime(app).existing_store()).forget(name, task_id)


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(seconds, 0.0), 253_402_000_000), UTC)
