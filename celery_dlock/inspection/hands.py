"""What people do to locks by hand: each names what it was shown, and touches nothing else.

A key that went to another holder since it was looked at is left alone. Whoever is called by it is
called by the process that did it, as with any operation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from celery_dlock.backends.base import Burial
from celery_dlock.core.state import Claim, Left, Outcome, task_id_of
from celery_dlock.inspection.overview import Held
from celery_dlock.tasks.runtime import runtime

#: What becomes of a holder whose key is released.
CONSEQUENCES = (
    "A body that still runs goes on until its next renewal, a third of the lease from now at the "
    'latest. Then its lease is lost; with on_lost="abort" it is aborted.',
    "Its writes that are fenced are refused from the next holder's first one on.",
    "Its writes that are not fenced are NOT stopped: two bodies may write at once.",
    "If the store keeps its message (keep=True) it runs again, and this run counts as a lost one.",
)

#: The dead that are looked through for one task.
ALL_DEAD = 10_000


@dataclass(frozen=True, slots=True)
class Message:
    """The message of one task in the queue of one key; ``task`` is its whole identity."""

    key: str
    task: str

    @property
    def task_id(self) -> str:
        return task_id_of(self.task)


def release(app: Any, key: str, holder: Held) -> bool:
    """Take *key* from *holder*, as if its lease had ended now; ``False`` if it had it no more.

    A body that still runs learns of it with its next renewal, a third of the lease from now at the
    latest: its lease is lost, and its writes are refused where they are fenced. If the store keeps
    its message it runs again, and the run counts as lost.

    Raises :exc:`~celery_dlock.BackendUnavailable`; whether it was freed is then unknown.
    """
    here = runtime(app)
    task, _, nonce = holder.owner.rpartition("|")
    claim = Claim(key, task, nonce, ttl=0, mode=holder.mode, limit=holder.limit)
    reply = here.existing_store().leave(claim, Outcome.ABANDONED)
    here.wake(reply.wakes)
    return isinstance(reply.verdict, Left)


def find(app: Any, task_ids: Collection[str]) -> list[Message]:
    """The messages that wait, or were called, under any of these ids."""
    return [Message(*found) for found in runtime(app).existing_store().parked(task_ids)]


def cancel(app: Any, message: Message) -> bool:
    """Have *message* end as revoked instead of waiting on; ``False`` if it waits no more.

    What runs goes on, and a copy that is on its way from the broker still comes.
    """
    here = runtime(app)
    reply = here.existing_store().cancel(message.key, message.task)
    here.wake(reply.wakes)
    return reply.verdict


def dead(app: Any, limit: int = 100) -> list[Burial]:
    """Messages that wait for a person, the oldest first."""
    return runtime(app).existing_store().dead(limit)


def dead_under(app: Any, task_id: str) -> list[Message]:
    """The dead messages of one task."""
    found = dead(app, ALL_DEAD)
    return [Message(b.key, b.dead.task) for b in found if task_id_of(b.dead.task) == task_id]


def replay(app: Any, message: Message) -> bool:
    """Have a dead *message* wait for its key again; ``False`` if it is not dead.

    That it lost runs, or is done, is forgotten: it runs.
    """
    here = runtime(app)
    reply = here.existing_store().replay(message.key, message.task)
    here.wake(reply.wakes)
    return reply.verdict
