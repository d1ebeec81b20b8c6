"""A scheduler that is led: it says what is due, and what it sends is sent once.

Mixed in before the class of any scheduler. It overrides what all of them have and nothing else: a
tick is claimed before its entry is set on to the next one (:meth:`~Led.reserve`), and sent under an
id of its own (:meth:`~Led.apply_async`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from celery.beat import BeatLazyFunc, SchedulingError, event_t
from kombu.exceptions import OperationalError

from celery_dlock.beat.entries import Entries
from celery_dlock.beat.records import NotNow, StepDown
from celery_dlock.beat.rows import anchored, is_one_off, is_row
from celery_dlock.beat.ticks import (
    CatchUp,
    Tick,
    due_tick,
    grid_of,
    local,
    next_due,
    now_is,
    now_of,
    utc,
)
from celery_dlock.core.events import TickRepeated, TickSent

#: The header of a message that says for which instant it was sent.
DUE = "dlock_due"


class Led(Entries):
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
        due, wait = self.unless_odd(self._is_due, entry) or (None, self.max_interval)
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

        So is an interval whose clocks have just changed, for Celery before 5.7.
        """
        doubtful = self.doubtful.get(entry.name)
        if doubtful is not None:
            return Tick(doubtful, again=True)
        now = now_of(entry.schedule)
        last = utc(entry.last_run_at)
        tick = due_tick(entry.schedule, last, now, self.catch_up)
        known = self.records.get(entry.name)
        if tick and known and known.next and tick.due < known.next - timedelta(seconds=1):
            # By the schedule that it had then it was not due: it was changed.
            tick = due_tick(entry.schedule, last, now, CatchUp.ONCE)
        if tick is None and grid_of(entry.schedule) is None:
            return Tick(now)  # by rules of its own it is due at an instant that it never named
        return tick

    def _claim(self, entry: Any) -> Tick | None:
        assert self.leader is not None
        self.leader.check()
        tick = self._tick(entry)
        if tick is None:
            return None
        with self._broker():  # what is not claimed yet is in no doubt when there is none
            self._ensure_connected()
        known = self.records.get(entry.name)
        if tick.first is not None:  # rather twice than never
            self.tell_missed(entry, tick.first, tick.due)
        self.records.claim(entry.name, known.sent if known else tick.due, tick.due)
        self.doubtful.pop(entry.name, None)
        return tick

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
        self.tell(TickSent(subject, due.isoformat()))
        return result

    def _publish(self, entry: Any, tick: Tick, producer: Any, **kwargs: Any) -> Any:
        assert self.leader is not None
        try:
            self.leader.check()
        except NotNow as exc:  # it is claimed, and it is not known what else it takes
            raise StepDown(str(exc)) from exc
        if tick.again:
            self.tell(TickRepeated(self.subject_of(entry, tick.due), tick.due.isoformat()))
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
    mend. So an :exc:`OSError` comes from whatever else is called to send it, a router say.
    """
    if isinstance(error, SchedulingError) and error.__context__ is not None:
        return _is_trouble(error.__context__, connection)
    if isinstance(error, connection.recoverable_connection_errors):
        return False
    return isinstance(error, (OperationalError, *connection.connection_errors))
