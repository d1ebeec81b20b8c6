"""The tasks that are compared: all do the same, under the one lock or the other, or under none."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from celery import Celery, shared_task
from redis import Redis

from celery_dlock import FullJitter, Ordered, Queue, Reschedule, locked_task
from scripts.benchmarks.floor import InLine, ReceivedFirst
from scripts.benchmarks.notes import Notes
from tests.services.lab import hold_at

TTL = 30.0
LATER = FullJitter()

OPTIONS: dict[str, Any] = {"bind": True, "acks_late": True, "max_retries": None}
LOCKED: dict[str, Any] = {"key": "{key}", "ttl": TTL, **OPTIONS}


@shared_task(name="bench.plain", **OPTIONS)
def plain(self: Any, key: str, seconds: float, sent: float = 0.0) -> None:
    _notes(self.app).body(seconds, sent, key)


@locked_task(name="bench.locked", **LOCKED)
def locked(self: Any, key: str, seconds: float) -> None:
    _notes(self.app).body(seconds, key=key)


@locked_task(name="bench.unique", unique="done", **LOCKED)
def unique(self: Any, key: str, seconds: float) -> None:
    _notes(self.app).body(seconds, key=key)


@locked_task(name="bench.queued", on_contention=Queue(), **LOCKED)
def queued(self: Any, key: str, seconds: float, sent: float = 0.0, hold: str | None = None) -> None:
    notes = _notes(self.app)
    if hold:
        hold_at(notes.folder, hold, timeout=120)
    notes.body(seconds, sent, key)


@locked_task(name="bench.published", on_contention=Ordered(), **LOCKED)
def published(self: Any, key: str, seconds: float, sent: float = 0.0) -> None:
    _notes(self.app).body(seconds, sent, key)


@locked_task(name="bench.rescheduled", on_contention=Reschedule(LATER), **LOCKED)
def rescheduled(self: Any, key: str, seconds: float) -> None:
    _notes(self.app).body(seconds, key=key)


@shared_task(name="bench.by_hand", **OPTIONS)
def by_hand(self: Any, key: str, seconds: float) -> None:
    """What is written by hand: a lock of redis-py, and ``retry()`` a tenth of a second later."""
    lock = _client(self.app).lock(f"by-hand:{key}", timeout=TTL)
    if not lock.acquire(blocking=False):
        raise self.retry(countdown=0.1)
    try:
        _notes(self.app).body(seconds, key=key)
    finally:
        lock.release()


@lru_cache
def _client(app: Celery) -> Redis:
    """One for the process: nobody looks up the address for each task."""
    return Redis.from_url(app.conf.dlock_url)


_notes = lru_cache(Notes)


@shared_task(name="bench.floor", base=ReceivedFirst, **OPTIONS)
def floor(self: Any, key: str, seconds: float, sent: float = 0.0) -> None:
    _notes(self.app).body(seconds, sent, key)


@shared_task(name="bench.floor_published", base=InLine, **OPTIONS)
def floor_published(self: Any, key: str, seconds: float, sent: float = 0.0) -> None:
    _notes(self.app).body(seconds, sent, key)
