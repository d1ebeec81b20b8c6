"""A scheduler that is led: it says what is due, and what it sends is sent once.

Mixed in before the class of any scheduler, in two parts. Its entries go on from where they stand,
after the last tick that is done with (:class:`ScheduleEntries`): that is what the lock store knows.
What a host remembers of an entry counts for less, and is all that there is when beats lead for the
first time. Rows of django-celery-beat and entries of RedBeat have ways of their own.

As the leader it overrides what all schedulers have and nothing else (:class:`FencedScheduler`): a
tick is claimed before its entry is set on to the next one (:meth:`~FencedScheduler.reserve`), and
sent under an id of its own (:meth:`~FencedScheduler.apply_async`).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, TypeVar

from celery.beat import BeatLazyFunc, Scheduler, SchedulingError, event_t
from kombu.exceptions import OperationalError

from celery_dlock.beat.leader import Leader
from celery_dlock.beat.tick_ledger import NotNow, StepDown, TickLedger, TickRecord
from celery_dlock.beat.ticks import (
    ORIGIN,
    Tick,
    due_tick,
    has_own_rules,
    local,
    next_due,
    now_is,
    now_of,
    settled,
    tick_id,
    utc,
)
from celery_dlock.core.events import Event, Subject, TickRepeated, TickSent, TicksMissed

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

#: For so long after it was due, what is known of an entry is kept that is not in the schedule.
FORGOTTEN_AFTER = timedelta(days=1)


class ScheduleEntries(Scheduler):  # type: ignore[misc]
    """Before the class of a scheduler: its entries go on from what is known of them."""

    leader: Leader | None = None

    def begin(
        self,
        leader: Leader,
        records: TickLedger,
        tell: Callable[[Event], None],
        *,
        catches_up: bool,
    ) -> None:
        """From now on this beat leads; *tell* hears the events.

        It *catches_up* if it sends the latest of the ticks that fell due before.
        """
        self.records, self.catches_up, self.tell = records, catches_up, tell
        self.led_since = self._tidied = utc(self.app.now())
        self._met: dict[str, Any] = {}
        self._off: dict[str, datetime] = {}
        self._broken: dict[str, Any] = {}
        #: When entries were read that were made since this beat leads.
        self._read_at: dict[str, datetime] = {}
        #: What the leader before has claimed: it may have been sent, or not.
        self.doubtful = {
            name: record.claimed for name, record in records.all().items() if record.claimed
        }
        self.leader = leader
        _show_overdue(self, records.all(), self.led_since)
        self._tidy(self.schedule)

    @property
    def schedule(self) -> Any:
        """The entries of the scheduler, each from the last tick on that is done with."""
        entries = super().schedule
        if self.leader is not None:
            placed = (self._met, self._broken)
            self._meet({n: e for n, e in entries.items() if all(p.get(n) is not e for p in placed)})
            if utc(self.app.now()) > self._tidied + FORGOTTEN_AFTER:
                self._tidy(entries)
        return entries

    @schedule.setter
    def schedule(self, entries: Any) -> None:
        self.set_schedule(entries)

    def _meet(self, entries: Mapping[str, Any]) -> None:
        """Set *entries* to where they stand. What a host remembers of them counts for less."""
        moved: dict[str, TickRecord] = {}
        for entry in entries.values():
            moved |= self.unless_broken(self._meet_one, entry) or {}
        self._note(entries, moved)

    def meet_again(self, entry: Any) -> None:
        """Set *entry* to where it stands, if it was odd; raise what it raises if it still is."""
        if entry.name in self._broken:
            moved = self._meet_one(entry)
            del self._broken[entry.name]
            self._note({entry.name: entry}, moved)

    def _note(self, entries: Mapping[str, Any], moved: Mapping[str, TickRecord]) -> None:
        if moved:
            self.records.start(moved)
        aside = {*self.doubtful, *self._broken}
        self._met |= {name: entry for name, entry in entries.items() if name not in aside}

    def unless_broken(self, question: Callable[[Any], V], entry: Any) -> V | None:
        """What *question* says of *entry*; ``None`` where it fails, and an error the first time.

        An entry that cannot say when it is due must not keep all others from being sent.
        """
        was_broken = entry.name in self._broken
        try:
            answer = question(entry)
        except Exception:
            if not was_broken:
                logger.exception("beat: cannot compute when %s is due, trying again", entry.name)
            self._broken[entry.name] = entry
            self._met.pop(entry.name, None)
            return None
        self._broken.pop(entry.name, None)
        return answer

    def _meet_one(self, entry: Any) -> dict[str, TickRecord]:
        """Set *entry* to where it stands; what is to be noted of that."""
        schedule, record = anchored(entry), self.records.get(entry.name)
        if record is not None and record.claimed:
            entry.last_run_at = local(schedule, record.sent)
            return {}
        last = self._last(entry, record)
        entry.last_run_at = local(schedule, last)
        if record is not None and last <= record.sent:
            return {}
        return {entry.name: TickRecord(last, next=next_due(schedule, last) or last)}

    def _last(self, entry: Any, record: TickRecord | None) -> datetime:
        """Up to where the ticks of *entry* are done with."""
        last = _stands(entry, record, entry.name in self._met)
        if record is None and last >= self.led_since:
            self._read_at[entry.name] = now_of(entry.schedule)
        if record is not None and _is_over(entry, record):
            entry.model.total_run_count = 1
        if getattr(entry, "enabled", True) is False:  # RedBeat shows such entries, too
            self._off[entry.name] = now_of(entry.schedule)
        last = settled(entry.schedule, max(last, self._off.get(entry.name, last)))
        if record is None or entry.name in self._met:
            return last
        return self._since_led(entry, last)

    def _tidy(self, entries: Mapping[str, Any]) -> None:
        """Forget what is known of entries that are gone for good."""
        now = utc(self.app.now())
        gone = [
            name
            for name, record in self.records.all().items()
            if name not in entries and (record.next or record.sent) + FORGOTTEN_AFTER < now
        ]
        if gone:
            self.records.forget(gone)
            for name in gone:
                self._met.pop(name, None)
        self._tidied = now

    def _since_led(self, entry: Any, last: datetime) -> datetime:
        """From where on the ticks of *entry* count, of which *last* was the last one."""
        since = settled(entry.schedule, self.led_since)
        if self.catches_up or since <= last:
            return last
        first = next_due(entry.schedule, last)
        if first is not None and first <= since:
            self.tell_missed(entry, first, next_due(entry.schedule, since) or since + _MOMENT)
        return since

    def subject_of(self, entry: Any, due: datetime) -> Subject:
        """The task of the tick of *entry* that is due at *due*."""
        assert self.leader is not None
        return Subject(tick_id(self.leader.scope, entry.name, due), entry.task, entry.name)

    def _text(self, instant: datetime) -> str:
        """In the time zone of the application, as its schedule is written."""
        return instant.astimezone(self.app.timezone).isoformat()

    def tell_missed(self, entry: Any, first: datetime, until: datetime) -> None:
        """The ticks of *entry* from *first* on and before *until* are missed."""
        subject = self.subject_of(entry, until)
        self.tell(TicksMissed(subject, self._text(first), self._text(until)))


_MOMENT = timedelta(microseconds=1)


def is_row(entry: Any) -> bool:
    """Whether *entry* is a row, which every beat reads from the same database."""
    return hasattr(entry, "model")


def is_one_off(entry: Any) -> bool:
    """Whether it is to be sent a single time."""
    return is_row(entry) and bool(entry.model.one_off)


def _is_over(entry: Any, record: TickRecord) -> bool:
    """Whether it is to be sent a single time, and was, of which the database may not know."""
    if not is_one_off(entry) or record.next is not None:
        return False
    last = _last_run(entry)
    return last is None or last <= record.sent


def anchored(entry: Any) -> Any:
    """The schedule of *entry*; the first tick of a row is when it starts."""
    starts = _starts(entry)
    if starts is not None:
        setattr(entry.schedule, ORIGIN, starts)
    return entry.schedule


def _stands(entry: Any, record: TickRecord | None, met: bool) -> datetime:
    """Up to where the ticks of *entry* are done with, as it says itself, and its *record* does.

    What it says counts if it was *met* in this lead: it may have been switched off, and on again
    just now. Before that it says when this beat has begun to lead.
    """
    last_run, starts = _last_run(entry), _starts(entry)
    if record is None:
        last = last_run or utc(entry.schedule.now())
    elif met and last_run is not None:
        last = max(record.sent, last_run)
    else:
        last = record.sent
    return last if starts is None else max(last, starts - _MOMENT)


def _show_overdue(scheduler: Any, records: Mapping[str, TickRecord], now: datetime) -> None:
    """Have RedBeat show what is overdue by the *records*. By its own count it may not be yet.

    How often an entry was run stays as it is, and of one that is switched off also when.
    """
    app, entries = scheduler.app, scheduler.Entry
    if not hasattr(entries, "reschedule"):
        return
    for name, record in records.items():
        if record.next is None or record.next > now:
            continue
        with suppress(KeyError):  # it was deleted
            entry = entries.from_key(entries.generate_key(app, name), app)
            if entry.enabled:
                last = local(entry.schedule, record.sent)
                entry.next(last_run_at=last, only_update_last_run_at=True)
            else:
                due = {entry.key: record.next.timestamp()}
                redis = import_module("redbeat.schedulers").get_redis(app)
                redis.zadd(app.redbeat_conf.schedule_key, due)


def _last_run(entry: Any) -> datetime | None:
    return None if entry.last_run_at is None else utc(entry.last_run_at)


def _starts(entry: Any) -> datetime | None:
    starts = getattr(entry.model, "start_time", None) if is_row(entry) else None
    return None if starts is None else utc(starts)


#: The header of a message that says for which instant it was sent.
DUE = "dlock_due"


class FencedScheduler(ScheduleEntries):
    """Before the class of a scheduler: it sends as the leader, and only as long as it leads."""

    writes = True

    _heap: list[Any] | None

    def begin(self, *given: Any, **named: Any) -> None:
        self._reserved: dict[str, Tick] = {}
        self._following: list[datetime] = []
        self.lock_key = None  # RedBeat's own, which it would wait for: there is a leader anyway
        super().begin(*given, **named)

    def drop(self) -> None:
        """The lead is lost: nothing of what this scheduler still knows is written anywhere."""
        self.writes = False
        # A shelf writes what it has read when it is closed.
        getattr(getattr(self, "_store", None), "cache", {}).clear()
        self.close()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.writes = False
            # django-celery-beat's would keep it until this process ends, and write then.
            finalize = getattr(self, "_finalize", None)
            if finalize is not None:
                finalize.cancel()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        # RedBeat counts from now, as Celery does, and in a place that is not to be overridden.
        self._following.clear()
        try:
            wait = super().tick(*args, **kwargs) or 0.0
        except NotNow:
            self._heap = None  # Celery has taken out what was due
            raise
        now = utc(self.app.now())
        return max(0.0, min([wait, *((due - now).total_seconds() for due in self._following)]))

    def should_sync(self) -> bool:
        """Not between setting an entry on and sending it, which may not come off."""
        return not self._reserved and bool(super().should_sync())

    def sync(self) -> None:
        if self.writes and (self.leader is None or self.leader.leads()):
            super().sync()

    def populate_heap(self, *_: Any, **__: Any) -> None:
        """As Celery's, but with what :meth:`is_due` says; before 5.7 one odd entry ended it."""
        self._heap = None
        heap: list[Any] = []
        for entry in self.schedule.values():
            due, wait = self.is_due(entry)
            heapq.heappush(heap, event_t(self._when(entry, 0 if due else wait) or 0, 5, entry))
        self._heap = heap

    def is_due(self, entry: Any) -> Any:
        due, wait = self.unless_broken(self._is_due, entry) or (None, self.max_interval)
        if due is None:
            self._put_off()
        return bool(due), wait

    def _is_due(self, entry: Any) -> tuple[bool | None, float]:
        """``None`` where it says that it is due, and is mistaken."""
        self.meet_again(entry)
        due, wait = super().is_due(entry)
        if not due:
            return False, wait
        # Celery counts from now, and the next tick from this one
        tick = self._tick(entry)
        after = utc(entry.last_run_at) if tick is None else tick.due
        following = next_due(entry.schedule, after)
        if following is not None:
            wait = max(0.0, (following - now_of(entry.schedule)).total_seconds())
        return None if tick is None else True, wait

    def _put_off(self) -> None:
        """The first of the heap is not due. Before 5.7 Celery kept all behind it waiting for it."""
        if self._heap is not None:
            self._heap = None
            self._following.append(utc(self.app.now()))

    def reserve(self, entry: Any) -> Any:
        tick = self._claim(entry)
        if tick is None:
            raise NotNow(f"{entry.name} is not due")
        self._reserved[entry.name] = tick
        return self._advance(entry, tick)

    def apply_async(
        self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any
    ) -> Any:
        if not advance:
            return self._send_reserved(entry, producer, **kwargs)
        tick = self._claim(entry)
        if tick is None:
            return None
        try:
            result = self._send(entry, tick, producer, **kwargs)
        except Exception:  # a defect of the entry; after anything else it is due all the same
            self._set_on(entry, tick)
            raise
        self._set_on(entry, tick)
        return result

    def _set_on(self, entry: Any, tick: Tick) -> None:
        self._advance(entry, tick)
        following = next_due(entry.schedule, tick.due)
        if following is not None:
            self._following.append(following)

    def _send_reserved(self, entry: Any, producer: Any, **kwargs: Any) -> Any:
        try:
            result = self._send(entry, self._reserved[entry.name], producer, **kwargs)
        except StepDown:  # so it was not run, and django-celery-beat must not write that it was
            getattr(self, "_dirty", set()).discard(entry.name)
            raise
        finally:
            del self._reserved[entry.name]
        if self.should_sync():
            self._do_sync()
        return result

    def _tick(self, entry: Any) -> Tick | None:
        """The tick that *entry* is due for, as it says itself; ``None`` where it is mistaken.

        So is an interval whose clocks have just changed, for Celery before 5.7, and any schedule
        if the clock is put back after it said so.
        """
        doubtful = self.doubtful.get(entry.name)
        if doubtful is not None:
            return Tick(doubtful, again=True)
        now, last = now_of(entry.schedule), utc(entry.last_run_at)
        tick = due_tick(entry.schedule, last, now)
        if tick is None and has_own_rules(entry.schedule, last, now):
            return Tick(now)
        return tick

    def _claim(self, entry: Any) -> Tick | None:
        assert self.leader is not None
        self.leader.check()
        tick = self._tick(entry)
        if tick is None:
            return None
        with self._broker():  # what is not claimed yet is in no doubt when there is none
            self._ensure_connected()
        record = self.records.get(entry.name)
        first = self._first_missed(entry, tick)
        if first is not None:  # rather twice than never
            self.tell_missed(entry, first, tick.due)
        self.records.claim(entry.name, record.sent if record else tick.due, tick.due)
        self.doubtful.pop(entry.name, None)
        return tick

    def _first_missed(self, entry: Any, tick: Tick) -> datetime | None:
        """The first missed tick, of those after *entry* was read, if it is new."""
        first, read_at = tick.first, self._read_at.pop(entry.name, None)
        if first is not None and read_at is not None and first <= read_at:
            first = next_due(entry.schedule, read_at)
        return first if first is not None and first < tick.due else None

    def _advance(self, entry: Any, tick: Tick) -> Any:
        """*entry* after *tick*: it was last run when that was due, and not a little later."""
        with now_is(entry.schedule, tick.due):
            following = super().reserve(entry)
        anchored(following)
        due = local(entry.schedule, tick.due)
        # Without time zones django-celery-beat keeps naive ones, which Celery takes for UTC.
        naive = following.last_run_at.tzinfo is None
        following.last_run_at = tick.due.replace(tzinfo=None) if naive else due
        if is_row(following):  # where django-celery-beat keeps it
            following.model.last_run_at = following.last_run_at
        if entry.name in self._met:  # and its schedule keeps the entry that was before
            self._met[entry.name].last_run_at = following.last_run_at
        return following

    def _send(self, entry: Any, tick: Tick, producer: Any, **kwargs: Any) -> Any:
        subject, due = self.subject_of(entry, tick.due), tick.due
        following = None if is_one_off(entry) else next_due(entry.schedule, due)
        given = entry.args, entry.kwargs, entry.options
        headers = {**entry.options.get("headers", {}), DUE: due.isoformat()}
        try:
            _compute(entry)
            entry.options = {**entry.options, "task_id": subject.task_id, "headers": headers}
            result = self._publish(entry, tick, producer, **kwargs)
        except Exception:
            self.records.sent(entry.name, due, following)
            raise  # a defect of the entry, which would be there every time: Celery logs it
        finally:
            entry.args, entry.kwargs, entry.options = given
        self.records.sent(entry.name, due, following)
        self.tell(TickSent(subject, self._text(due)))
        return result

    def _publish(self, entry: Any, tick: Tick, producer: Any, **kwargs: Any) -> Any:
        assert self.leader is not None
        try:
            self.leader.check()
        except NotNow as exc:  # it is claimed, and it is not known what else it takes
            raise StepDown(str(exc)) from exc
        if tick.again:
            self.tell(TickRepeated(self.subject_of(entry, tick.due), self._text(tick.due)))
        with self._broker():
            return super().apply_async(entry, producer=producer, advance=False, **kwargs)

    @contextmanager
    def _broker(self) -> Iterator[None]:
        """A broker that does not do what the block asks of it costs the lead."""
        try:
            yield
        except Exception as exc:
            if _is_trouble(exc, self.connection):
                raise StepDown(f"it cannot send: {exc}") from exc
            raise

    def _ensure_connected(self) -> Any:
        """Not for as long as Celery's, which tries a hundred times: another beat may be able to."""
        return self.connection.ensure_connection(
            max_retries=2, interval_start=0.2, interval_step=0.2
        )


def _compute(entry: Any) -> None:
    """What *entry* has functions for. What they raise is not mistaken for the broker's error."""
    try:
        entry.args = [_computed(value) for value in entry.args or ()]
        entry.kwargs = {name: _computed(value) for name, value in (entry.kwargs or {}).items()}
    except Exception as exc:
        raise SchedulingError(f"Couldn't compute the arguments of {entry.name}: {exc}") from exc


def _computed(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def _is_trouble(error: BaseException, connection: Any) -> bool:
    """Whether it is the broker, and not the message, that keeps one from being sent.

    Of its connection's errors Celery makes kombu's own, but for those that trying again does not
    fix. So an :exc:`OSError` comes from whatever else is called to send it, a router say.
    """
    if isinstance(error, SchedulingError) and error.__context__ is not None:
        return _is_trouble(error.__context__, connection)
    if isinstance(error, connection.recoverable_connection_errors):
        return False
    return isinstance(error, (OperationalError, *connection.connection_errors))
