"""Somebody is at it already: the task does not run, and its result says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from celery_dlock.contention.base import Complete, Contention, Decision, HolderInfo
from celery_dlock.core.checks import quoted
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
            raise ConfigurationError(f'then= is "stop" or "continue", got {quoted(self.then)}')

    def decide(self, contention: Contention) -> Decision:
        return Complete(skipped(contention.key, contention.holder), self.then)


def skipped(key: str, holder: HolderInfo | None, reason: str | None = None) -> dict[str, Any]:
    """The result of a task that does not run; *reason* where it is another than the holder."""
    result = {
        "skipped": True,
        "key": key,
        "holder": holder.task_id if holder else None,
        "since": holder.since if holder else None,
    }
    return result if reason is None else {**result, "reason": reason}
