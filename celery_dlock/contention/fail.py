"""Do not wait: the task fails."""

from __future__ import annotations

from dataclasses import dataclass

from celery_dlock.contention.base import Contention, Decision, GiveUp
from celery_dlock.errors import LockContended


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail with :exc:`~celery_dlock.LockContended`, which names the holder and its time left."""

    def decide(self, contention: Contention) -> Decision:
        holder = contention.holder
        if holder is None:
            return GiveUp(LockContended(contention.key))
        return GiveUp(LockContended(contention.key, holder.task_id, holder.seconds_left))
