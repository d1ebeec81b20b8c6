"""The tasks of an application that take locks, and what Celery was told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from celery_dlock.contention import Policy, Queueing, queueing
from celery_dlock.inspection.doctor.case import Case


@dataclass(frozen=True, slots=True)
class Locked:
    """One task; ``longest`` is how many seconds a body may run, if anything limits that."""

    name: str
    task: Any
    policy: Policy
    longest: float | None
    fenced: bool

    @classmethod
    def all_of(cls, case: Case, default: Policy) -> list[Self]:
        """Those of *case*, by name. *default* is the policy of tasks that name none."""
        tasks = sorted(case.app.tasks.items())
        return [
            cls._of(name, task, case, default)
            for name, task in tasks
            if hasattr(task, "lock_definition")
        ]

    @classmethod
    def _of(cls, name: str, task: Any, case: Case, default: Policy) -> Self:
        definition = task.lock_definition
        limit = task.time_limit or case.conf.task_time_limit
        longest = limit or definition.max_hold or case.settings.max_hold
        fenced = "fencing_token" in definition.injects
        return cls(name, task, definition.policy or default, longest, fenced)

    @property
    def waits(self) -> Queueing | None:
        """How its messages wait in the store, if they do."""
        return queueing(self.policy)

    @property
    def kept(self) -> bool:
        """Whether the store has its message until it is through."""
        return self.waits is not None and self.waits.keep

    @property
    def late(self) -> bool:
        """Whether its message is acknowledged when it is through."""
        return bool(self.task.acks_late)

    @property
    def countdown(self) -> float:
        """Seconds that a retry may wait in the broker, as far as that is configured."""
        options = vars(type(self.task))
        backs_off = options.get("autoretry_for") and options.get("retry_backoff")
        most = options.get("retry_backoff_max", 600) if backs_off else 0
        return float(max(self.task.default_retry_delay or 0, most))
