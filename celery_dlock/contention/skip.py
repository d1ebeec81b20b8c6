"""Somebody is at it already: the task does not run, and its result says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from celery_dlock.contention.base import Complete, Contention, Decision
from celery_dlock.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Skip:
    """Complete at once with a result that names key, holder and since when it holds.

    *then* is for a chain: ``"stop"`` ends it there, its later tasks complete with the same result
    and none of them runs; ``"continue"`` goes on with the result of the skip. A chord counts a
    skipped task as done, either way.
    """

    then: Literal["stop", "continue"] = "stop"

    def __post_init__(self) -> None:
        if self.then not in ("stop", "continue"):
            raise ConfigurationError(f'then= is "stop" or "continue", got {self.then!r}')

    def decide(self, contention: Contention) -> Decision:
        holder = contention.holder
        result = {
            "skipped": True,
            "key": contention.key,
            "holder": holder.task_id if holder else None,
            "since": holder.since if holder else None,
        }
        return Complete(result, self.then)
