"""Who leads, who stands by, and what falls due next: what the lock store says, for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_dlock.backends.base import LockBackend
from celery_dlock.beat.leader import key_of, requests_of
from celery_dlock.beat.records import Record, read
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Holder, task_id_of
from celery_dlock.tasks.runtime import runtime


@dataclass(frozen=True, slots=True)
class Status:
    """The beats of one app as the store had them at one moment."""

    key: str
    holder: Holder | None
    standbys: tuple[str, ...]
    records: dict[str, Record]

    @classmethod
    def of(cls, app: Any) -> Status:
        """Ask the store of *app*. Raises :exc:`~celery_dlock.BackendUnavailable`."""
        backend, key = runtime(app).existing_store(), key_of(app)
        backend.reap(key)  # who has not asked for a while does not stand by any more
        state = backend.peek(key)
        standing_by = tuple(task_id_of(waiting.task) for waiting in state.waiting)
        holder = state.holders[0] if state.holders else None
        return cls(key, holder, standing_by, read(backend, key))

    @property
    def leader(self) -> str | None:
        """Host, process and number of the beat that leads."""
        return None if self.holder is None else task_id_of(self.holder.task)

    @property
    def since(self) -> datetime | None:
        """Since when it leads, on the store's clock."""
        if self.holder is None:
            return None
        return datetime.fromtimestamp(self.holder.since / SECOND, UTC)

    def dues(self) -> list[tuple[str, datetime]]:
        """The entries and when each falls due next, the first one first."""
        dues = [(record.next, name) for name, record in self.records.items() if record.next]
        return [(name, due) for due, name in sorted(dues)]

    def ask_to_hand_over(self, backend: LockBackend) -> bool:
        """Have the leader of this status go; ``False`` if another one was asked since."""
        assert self.holder is not None
        to = {"to": self.holder.owner.encode()}
        return backend.note(requests_of(self.key), self.holder.token, to)
