"""The entries of a scheduler, each from where it stands: after the last tick that is done with.

That is what the lock store knows. What a host remembers of an entry counts for less, and is all
that there is when beats lead for the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from celery.beat import Scheduler

from celery_dlock.beat.leader import Leader
from celery_dlock.beat.records import Record, Records
from celery_dlock.beat.rows import anchored, is_off, is_over, show_overdue, stands
from celery_dlock.beat.ticks import CatchUp, local, next_due, now_of, settled, tick_id, utc
from celery_dlock.core.events import Event, Subject, TicksMissed

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

#: For so long after it was due, what is known of an entry is kept that is not in the schedule.
KEPT = timedelta(days=1)


class Entries(Scheduler):  # type: ignore[misc]
    """Before the class of a scheduler: its entries go on from what is known of them."""

    leader: Leader | None = None

    def begin(
        self,
        leader: Leader,
        records: Records,
        catch_up: CatchUp,
        tell: Callable[[Event], None],
    ) -> None:
        """From now on this beat leads; *tell* hears the events."""
        self.records, self.catch_up, self.tell = records, catch_up, tell
        self.led_since = self._tidied = utc(self.app.now())
        self._met: dict[str, Any] = {}
        self._off: dict[str, datetime] = {}
        self._odd: dict[str, Any] = {}
        #: What the leader before has claimed: it may have been sent, or not.
        self.doubtful = {
            name: record.claimed for name, record in records.all().items() if record.claimed
        }
        self.leader = leader
        show_overdue(self, records.all(), self.led_since)
        self._tidy(self.schedule)

    @property
    def schedule(self) -> Any:
        """The entries of the scheduler, each from the last tick on that is done with."""
        entries = super().schedule
        if self.leader is not None:
            known = (self._met, self._odd)
            self._meet({n: e for n, e in entries.items() if all(k.get(n) is not e for k in known)})
            if utc(self.app.now()) > self._tidied + KEPT:
                self._tidy(entries)
        return entries

    @schedule.setter
    def schedule(self, entries: Any) -> None:
        self.set_schedule(entries)

    def _meet(self, entries: Mapping[str, Any]) -> None:
        """Set *entries* to where they stand. What a host remembers of them counts for less."""
        moved: dict[str, Record] = {}
        for entry in entries.values():
            moved |= self.unless_odd(self._meet_one, entry) or {}
        self._note(entries, moved)

    def meet_again(self, entry: Any) -> None:
        """Set *entry* to where it stands, if it was odd; raise what it raises if it still is."""
        if entry.name in self._odd:
            moved = self._meet_one(entry)
            del self._odd[entry.name]
            self._note({entry.name: entry}, moved)

    def _note(self, entries: Mapping[str, Any], moved: Mapping[str, Record]) -> None:
        if moved:
            self.records.start(moved)
        aside = {*self.doubtful, *self._odd}
        self._met |= {name: entry for name, entry in entries.items() if name not in aside}

    def unless_odd(self, question: Callable[[Any], V], entry: Any) -> V | None:
        """What *question* says of *entry*; ``None`` where it fails, and an error the first time.

        An entry that cannot say when it is due must not keep all others from being sent.
        """
        was_odd = entry.name in self._odd
        try:
            answer = question(entry)
        except Exception:
            if not was_odd:
                logger.exception("beat: it cannot be said when %s is due, trying again", entry.name)
            self._odd[entry.name] = entry
            self._met.pop(entry.name, None)
            return None
        self._odd.pop(entry.name, None)
        return answer

    def _meet_one(self, entry: Any) -> dict[str, Record]:
        """Set *entry* to where it stands; what is to be noted of that."""
        schedule, known = anchored(entry), self.records.get(entry.name)
        if known is not None and known.claimed:
            entry.last_run_at = local(schedule, known.sent)
            return {}
        last = self._last(entry, known)
        entry.last_run_at = local(schedule, last)
        if known is not None and last <= known.sent:
            return {}
        return {entry.name: Record(last, next=next_due(schedule, last) or last)}

    def _last(self, entry: Any, known: Record | None) -> datetime:
        """Up to where the ticks of *entry* are done with."""
        last = stands(entry, known, entry.name in self._met)
        if known is not None and is_over(entry, known):
            entry.model.total_run_count = 1
        if is_off(entry):
            self._off[entry.name] = now_of(entry.schedule)
        last = settled(entry.schedule, max(last, self._off.get(entry.name, last)))
        if known is None or entry.name in self._met:
            return last
        return self._since_led(entry, last)

    def _tidy(self, entries: Mapping[str, Any]) -> None:
        """Forget what is known of entries that are gone for good."""
        now = utc(self.app.now())
        gone = [
            name
            for name, record in self.records.all().items()
            if name not in entries and (record.next or record.sent) + KEPT < now
        ]
        if gone:
            self.records.forget(gone)
            for name in gone:
                self._met.pop(name, None)
        self._tidied = now

    def _since_led(self, entry: Any, last: datetime) -> datetime:
        """From where on the ticks of *entry* count, of which *last* was the last one."""
        since = settled(entry.schedule, self.led_since)
        if self.catch_up is not CatchUp.NONE or since <= last:
            return last
        first = next_due(entry.schedule, last)
        if first is not None and first <= since:
            self.tell_missed(entry, first, since)
        return since

    def subject_of(self, entry: Any, due: datetime) -> Subject:
        """The task of the tick of *entry* that is due at *due*."""
        assert self.leader is not None
        return Subject(tick_id(self.leader.scope, entry.name, due), entry.task, entry.name)

    def tell_missed(self, entry: Any, first: datetime, until: datetime) -> None:
        """The ticks of *entry* from *first* on and before *until* are left out."""
        subject = self.subject_of(entry, until)
        self.tell(TicksMissed(subject, first.isoformat(), until.isoformat()))
