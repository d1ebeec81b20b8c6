"""Which beat leads: the one that holds an ordinary lock, under an ordinary lease.

The keeper renews it in the background, whatever the scheduler is doing. Whoever stands by asks
again and again, with a place in the key's queue, so that people can see who does.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import Any

from celery_dlock.beat.records import NotNow, StepDown
from celery_dlock.core.events import LEAD, Acquired, Lost, Released, Subject
from celery_dlock.core.lease import SECOND, Lease, Term
from celery_dlock.core.manager import Keeping
from celery_dlock.core.state import Claim, Outcome, Wait
from celery_dlock.errors import BackendUnavailable
from celery_dlock.tasks.runtime import runtime

#: Seconds between two questions of a beat that stands by, and between two looks of one that leads.
ASK = 1.0

#: For how many seconds a beat that has asked counts as standing by.
PATIENCE = 5.0

#: Nothing is sent in the last part of a lease: it was to be renewed before the last two thirds.
LAST_PART = 1 / 4


#: The keys that beats lead by begin so.
KEYS = "dlock:beat:"


def key_of(app: Any) -> str:
    """The key that the beats of *app* lead by."""
    return f"{KEYS}{app.main or ''}"


def requests_of(key: str) -> str:
    """Beside this key stands who was asked to hand over, under the name ``to``."""
    return f"{key}:hand-over"


class Leader:
    """One beat's part in the election. Its lease is there while it leads."""

    def __init__(self, app: Any) -> None:
        self.key = key_of(app)
        prefix = runtime(app).settings.key_prefix
        #: What makes the ids of its ticks its own.
        self.scope = f"{prefix}:{self.key}"
        self.who = f"beat@{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self.lease: Lease | None = None
        self._app = app
        self._subject = Subject(self.who, LEAD, LEAD)
        self._asked: Claim | None = None
        self._unheard = False
        self._rests_until = 0.0
        self._since = 0.0

    def leads(self) -> bool:
        """Whether this beat may believe that it leads."""
        return self.lease is not None and not self.lease.lost

    def campaign(self) -> bool:
        """Ask for the lead; whether this beat has it now. Raises :exc:`BackendUnavailable`."""
        here = runtime(self._app)
        if self._unheard:  # what is claimed in vain may land all the same: each would be one more
            here.backend.notes(self.key)
        self._unheard = True
        claim = self._asked = Claim(
            self.key,
            task=f"{self.who}:0:0",
            nonce=uuid.uuid4().hex,
            ttl=here.lease_time(None),
            wait=Wait.PLACE,
            patience=int(PATIENCE * SECOND),
        )
        answer = here.manager.acquire([claim], Keeping(None, _told_when_it_retires))
        self._unheard = False
        if not isinstance(answer, Lease):
            return False
        self.lease, self._since = answer, time.monotonic()
        tokens = (answer.fencing_token,)
        here.sinks.emit(Acquired(self._subject, answer.keys, tokens, took=0.0, ttl=answer.ttl))
        return True

    def check(self) -> None:
        """Raise :exc:`StepDown` or :exc:`NotNow` when this beat must not send anything."""
        if self.lease is None or self.lease.lost:
            raise StepDown("its lease is lost")
        if self.lease.remaining() < self.lease.ttl * LAST_PART:
            raise NotNow("its lease was not renewed in time")

    def lose(self, reason: str) -> None:
        """Another beat has the lead, whatever the lease says."""
        if self.lease is not None:
            self.lease.terms[0].lose(reason)

    def abandon(self) -> None:
        """Give the lead back from another thread, while that of the scheduler hangs."""
        lease = self.lease
        if lease is not None:
            self.lose("its scheduler hangs")
            runtime(self._app).manager.take_back([term.claim for term in lease.terms])

    def asked_to_go(self) -> bool:
        """Whether somebody wants another beat to lead."""
        backend = runtime(self._app).backend
        asked = backend.notes(requests_of(self.key)).get("to")
        return self.lease is not None and asked == self.lease.owner.encode()

    def rest(self, seconds: float) -> None:
        """Do not ask for the lead for so long: somebody else may."""
        self._rests_until = time.monotonic() + seconds

    def rests(self) -> bool:
        """Whether it is not to ask yet."""
        return time.monotonic() < self._rests_until

    def retire(self) -> None:
        """Give the lead back, or the place of who stands by. Never raises for the store."""
        here, lease, self.lease = runtime(self._app), self.lease, None
        if lease is None:
            if self._asked is not None:
                here.manager.take_back([self._asked])
            return
        (term,) = lease.terms
        told = term.lost
        if told:  # a store that is away may take its time now
            here.sinks.emit(Lost(self._subject, self.key, told))
        try:
            here.manager.release(lease, Outcome.OVER)
        except BackendUnavailable as exc:
            term.lose(f"nobody heard that it was given back: {exc}")
        if term.lost and not told:
            here.sinks.emit(Lost(self._subject, self.key, term.lost))
        elif not told:
            held = time.monotonic() - self._since
            here.sinks.emit(Released(self._subject, lease.keys, Outcome.OVER, held))
        lease.give_back()


def _told_when_it_retires(term: Term, reason: str) -> None:
    """Every second it looks whether it leads."""
