"""Which beat leads: the one that holds an ordinary lock, under an ordinary lease.

The keeper renews it in the background, whatever the scheduler is doing. Whoever stands by asks
again and again, with a place in the key's queue, so that people can see who does, and what falls
due next.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery_dlock.beat.tick_ledger import NotNow, StepDown, TickRecord, noting, read
from celery_dlock.core.events import LEAD, Subject
from celery_dlock.core.lease import SECOND, Lease
from celery_dlock.core.state import Claim, Holder, Outcome, WaitMode, task_id_of
from celery_dlock.locks.hold import Hold
from celery_dlock.runtime import runtime, this_process
from celery_dlock.stores.base import LockBackend

logger = logging.getLogger("celery_dlock")

#: Seconds between two questions of a beat that stands by, and between two looks of one that leads.
ASK = 1.0

#: For how many seconds a beat that has asked counts as standing by.
STANDBY_SECONDS = 5.0

#: Nothing is sent in the last part of a lease: it was to be renewed before the last two thirds.
LAST_PART = 1 / 4


#: The keys that beats lead by begin so.
KEYS = "dlock:beat:"


def key_of(app: Any) -> str:
    """The key that the beats of *app* lead by."""
    return f"{KEYS}{app.main or ''}"


def reads_a_database(app: Any) -> bool:
    """Whether the entries come from django-celery-beat, which leaves out crontabs of later hours.

    A scheduler of the application's own that derives from it is not known.
    """
    scheduler = runtime(app).settings.beat_scheduler
    return scheduler == "django" or scheduler.startswith("django_celery_beat")


def _requests_of(key: str) -> str:
    """Beside this key stands who was asked to step down, under the name ``to``."""
    return f"{key}:step-down"


class Leader:
    """One beat's part in the election."""

    def __init__(self, app: Any) -> None:
        self.key = key_of(app)
        prefix = runtime(app).settings.key_prefix
        #: What makes the ids of its ticks its own.
        self.scope = f"{prefix}:{self.key}"
        self.who = f"beat@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._app = app
        self._subject = Subject(self.who, LEAD, LEAD)
        self._hold: Hold | None = None
        self._unheard = False
        self._follows: str | None = None
        self._rests_until = 0.0

    @property
    def lease(self) -> Lease | None:
        """The leader's lock; ``None`` while this beat stands by."""
        return None if self._hold is None else self._hold.lease

    def leads(self) -> bool:
        """Whether this beat may believe that it leads."""
        lease = self.lease
        return lease is not None and not lease.lost

    def campaign(self) -> bool:
        """Ask for the lead; whether this beat has it now. Raises :exc:`BackendUnavailable`."""
        locks = runtime(self._app)
        if self._unheard:  # what is claimed in vain may land all the same: each would be one more
            noting(locks.backend).notes(self.key)
        self._unheard = True
        claim = Claim(
            self.key,
            task=f"{self.who}:0:0",
            nonce=uuid.uuid4().hex,
            ttl=locks.lease_time(None),
            wait=WaitMode.PLACE,
            patience=int(STANDBY_SECONDS * SECOND),
            name="beat",
            where=this_process(),
        )
        self._hold = Hold(locks.manager, locks.sinks.emit, self._subject, ends_once=True)
        answer = self._hold.ask([claim])
        self._unheard = False
        if not isinstance(answer, Lease):
            self._say_who_leads(answer.error.holder)
            return False
        self._follows = None
        self._hold.taken(answer, took=0.0)
        return True

    def _say_who_leads(self, leader: str | None) -> None:
        """Log that this beat stands by, when it begins to and when another one leads."""
        # Between two leaders there is none, and what this beat claimed in vain may be its own.
        if leader not in (None, self.who, self._follows):
            logger.info("beat: %s stands by, %s leads", self.who, leader)
            self._follows = leader

    def check(self) -> None:
        """Raise :exc:`StepDown` or :exc:`NotNow` when this beat must not send anything."""
        lease = self.lease
        if lease is None or lease.lost:
            raise StepDown("its lease is lost")
        if lease.remaining() < lease.ttl * LAST_PART:
            raise NotNow("its lease was not renewed in time")

    def lose(self, reason: str) -> None:
        """Another beat has the lead, whatever the lease says."""
        lease = self.lease
        if lease is not None:
            lease.terms[0].lose(reason)

    def abandon(self) -> None:
        """Give the lead back from another thread, while that of the scheduler hangs."""
        lease = self.lease
        if lease is not None:
            self.lose("its scheduler hangs")
            runtime(self._app).manager.take_back([term.claim for term in lease.terms])

    def asked_to_go(self) -> bool:
        """Whether somebody wants another beat to lead."""
        lease, backend = self.lease, noting(runtime(self._app).backend)
        asked = backend.notes(_requests_of(self.key)).get("to")
        return lease is not None and asked == lease.owner.encode()

    def rest(self, seconds: float) -> None:
        """Do not ask for the lead for so long: somebody else may."""
        self._rests_until = time.monotonic() + seconds

    def rests(self) -> bool:
        """Whether it is not to ask yet."""
        return time.monotonic() < self._rests_until

    def retire(self) -> None:
        """Give the lead back, or the place of who stands by. Never raises for the store."""
        if self._hold is not None:
            self._hold.give_back(Outcome.OVER)


@dataclass(frozen=True, slots=True)
class Status:
    """The beats of one app as the store had them at one moment."""

    key: str
    holder: Holder | None
    standbys: tuple[str, ...]
    records: dict[str, TickRecord]

    @classmethod
    def of(cls, app: Any) -> Status:
        """Ask the store of *app*. Raises :exc:`~celery_dlock.BackendUnavailable`."""
        backend, key = runtime(app).existing_store(), key_of(app)
        backend.reap(key)  # who has not asked for a while does not stand by any more
        (state,) = backend.look([key])
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

    def ask_to_step_down(self, backend: LockBackend) -> bool:
        """Have the leader of this status go; ``False`` if another one was asked since."""
        assert self.holder is not None
        to = {"to": self.holder.owner.encode()}
        return noting(backend).note(_requests_of(self.key), self.holder.token, to)
