"""What was sent last, of each entry: notes in the lock store, under the leader's fencing token.

A tick is *claimed* before it is sent and *sent* after it. So the next leader neither sends again
what was sent nor forgets what was due, on whatever host it runs; and one that was deposed is
refused when it claims.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.base import LockBackend, NoteStore

logger = logging.getLogger("celery_dlock")


class StepDown(BaseException):
    """The lead is to be given up.

    No :exc:`Exception`: schedulers log those and go on with the next entry.
    """


class Deposed(StepDown):
    """Another beat leads by now."""


class NotNow(BaseException):
    """Nothing can be sent at the moment, and nothing was; it is due all the same."""


@dataclass(frozen=True, slots=True)
class TickRecord:
    """Of one entry: everything up to *sent* is done with; *claimed* is on its way, or may be.

    *next* is when the entry falls due after that, for people.
    """

    sent: datetime
    claimed: datetime | None = None
    next: datetime | None = None

    def encode(self) -> bytes:
        fields = {"sent": self.sent, "claimed": self.claimed, "next": self.next}
        return json.dumps({k: v.isoformat() for k, v in fields.items() if v}).encode()

    @classmethod
    def decode(cls, note: bytes) -> TickRecord:
        """Fields of a later version are left alone."""
        fields = json.loads(note)
        texts = {name: fields[name] for name in cls.__slots__ if name in fields}
        return cls(**{name: datetime.fromisoformat(text) for name, text in texts.items()})


class TickLedger:
    """The records of one leader, which nobody else may write as long as it leads.

    Raises :exc:`Deposed` where somebody else leads by now, and :exc:`NotNow` where the store does
    not answer.
    """

    def __init__(self, backend: LockBackend, key: str, token: int) -> None:
        self._backend = noting(backend)
        self._key = key
        self._token = token
        self._unheard_of: dict[str, TickRecord] = {}
        self._write({})  # from now on no leader before this one can
        self._known = read(backend, key)

    def get(self, entry: str) -> TickRecord | None:
        """What is known of *entry*."""
        return self._known.get(entry)

    def all(self) -> dict[str, TickRecord]:
        """All that is known, by the names of the entries."""
        return dict(self._known)

    def start(self, records: Mapping[str, TickRecord]) -> None:
        """Entries that are seen for the first time, or at another instant than is known."""
        self._write(records)

    def forget(self, entries: list[str]) -> None:
        """They are not in the schedule any more."""
        self._write(dict.fromkeys(entries))

    def claim(self, entry: str, sent: datetime, tick: datetime) -> None:
        """*tick* of *entry* is going to be sent, after all up to *sent*."""
        self._write({entry: TickRecord(sent, claimed=tick, next=tick)})

    def sent(self, entry: str, tick: datetime, following: datetime | None) -> None:
        """*tick* of *entry* was sent.

        A store that does not hear of it is told with the next claim. If this process ends before,
        the next leader sends the tick again.
        """
        record = TickRecord(tick, next=following)
        self._unheard_of[entry] = self._known[entry] = record
        try:
            self._tell(self._unheard_of)
        except BackendUnavailable as exc:
            logger.warning(
                "beat: %s was sent; the lock store has not recorded that yet: %s", entry, exc
            )

    def _write(self, records: Mapping[str, TickRecord | None]) -> None:
        try:
            self._tell({**self._unheard_of, **records})
        except BackendUnavailable as exc:
            raise NotNow(f"the lock store is unavailable: {exc}") from exc
        for entry, record in records.items():
            if record is None:
                self._known.pop(entry, None)
            else:
                self._known[entry] = record

    def _tell(self, records: Mapping[str, TickRecord | None]) -> None:
        notes = {
            entry: None if record is None else record.encode() for entry, record in records.items()
        }
        if not self._backend.note(self._key, self._token, notes):
            raise Deposed("a newer leader has written to the lock store")
        self._unheard_of.clear()


def noting(backend: LockBackend) -> NoteStore:
    """*backend*, of which beat asks more than tasks do.

    Raises :exc:`~celery_dlock.ConfigurationError` if it keeps no notes.
    """
    if not isinstance(backend, NoteStore):
        raise ConfigurationError(
            f"beat keeps its ticks in the lock store, and {type(backend).__name__} keeps no notes"
        )
    return backend


def read(backend: LockBackend, key: str) -> dict[str, TickRecord]:
    """The records beside *key*, by the names of their entries."""
    records: dict[str, TickRecord] = {}
    for entry, note in noting(backend).notes(key).items():
        try:
            records[entry] = TickRecord.decode(note)
        except (ValueError, TypeError, AttributeError):
            logger.exception("beat: cannot read the record of %s in the lock store", entry)
    return records
