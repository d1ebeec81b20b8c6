"""The metrics of this process, made once however many apps count in them.

Every task has two events, that its lock was taken and that it was released. They are kept for half
a second and counted together: one at a time, between all that a task does, each takes several times
as long. All others are counted at once. What is kept is lost with a process that is killed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from prometheus_client import Counter, Gauge, Histogram

from celery_dlock.core.events import Acquired, Event, Released
from celery_dlock.monitoring.endings import tell_end
from celery_dlock.monitoring.measures import (
    ACQUISITION,
    HOLD,
    MEASURES,
    OF_BEAT,
    OF_LOCKS,
    Kind,
    Measure,
    measurements,
)
from celery_dlock.monitoring.slots import InSlot

logger = logging.getLogger("celery_dlock")

LABELS = ("task", "template")

#: Seconds for which events are kept, until the thread without work ends, and how many at most.
KEPT_FOR = 0.5
IDLE = 60.0
ROOM = 1000


class _Counter(InSlot, Counter):
    pass


class _Gauge(InSlot, Gauge):
    pass


class _Histogram(InSlot, Histogram):
    pass


def _metric(measure: Measure) -> _Counter | _Gauge | _Histogram:
    match measure.kind:
        case Kind.COUNTER:
            return _Counter(measure.name, measure.about, LABELS)
        case Kind.GAUGE:
            return _Gauge(measure.name, measure.about, LABELS, multiprocess_mode="mostrecent")
        case Kind.HISTOGRAM:
            return _Histogram(measure.name, measure.about, LABELS, buckets=measure.buckets)


METRICS = {measure: _metric(measure) for measure in MEASURES}


class _Series(dict[Measure, Callable[[float], None]]):
    """What is counted for one task and template.

    All counters start at zero together: Prometheus would not see the first step of one that
    appears with it.
    """

    def __init__(self, group: Iterable[Measure], labels: tuple[str, ...]) -> None:
        super().__init__()
        self._labels = labels
        for measure in group:
            if measure.kind is Kind.COUNTER or measure in (ACQUISITION, HOLD):
                self.__missing__(measure)

    def __missing__(self, measure: Measure) -> Callable[[float], None]:
        self[measure] = add = _adder(METRICS[measure].labels(*self._labels))
        return add


def _adder(child: _Counter | _Gauge | _Histogram) -> Callable[[float], None]:
    if isinstance(child, Counter):
        return child.inc
    if isinstance(child, Histogram):
        return child.observe
    return _SetIfOther(child)


class _SetIfOther:
    """A gauge that is hardly ever another one."""

    def __init__(self, gauge: _Gauge) -> None:
        self._gauge = gauge
        self._is: float | None = None

    def __call__(self, value: float) -> None:
        if value != self._is:
            self._gauge.set(value)
            self._is = value


class Tally:
    """Counts events, also those of a signal's handler that interrupts it.

    Whoever forks waits for those who count: a lock of the library that is held as a process is
    forked would be held in the child for ever.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, bool], _Series] = {}
        self._kept: list[Event] = []
        self._thread: threading.Thread | None = None
        self._gate = threading.RLock()
        os.register_at_fork(
            before=self._gate.acquire,
            after_in_parent=self._gate.release,
            after_in_child=self._start_anew,
        )

    def __call__(self, event: Event) -> None:
        with self._gate:
            if not isinstance(event, Acquired | Released):
                self._count(event)
                return
            self._kept.append(event)
            if len(self._kept) >= ROOM:
                self._count_kept()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dlock-count", daemon=True)
                self._thread.start()
                tell_end(self)

    def at_end(self) -> None:
        """Count what is kept."""
        with self._gate:
            self._count_kept()

    def _start_anew(self) -> None:
        """What is kept is the parent's to count, and its thread is not here."""
        self._kept.clear()
        self._thread = None
        self._gate.release()

    def _run(self) -> None:
        idle_at = time.monotonic() + IDLE
        while True:
            time.sleep(KEPT_FOR)
            with self._gate:
                if self._kept:
                    idle_at = time.monotonic() + IDLE
                elif time.monotonic() > idle_at:
                    self._thread = None
                    return
                try:
                    self._count_kept()
                except Exception:
                    logger.exception("events of locks could not be counted")

    def _count_kept(self) -> None:
        kept, self._kept = self._kept, []
        for event in kept:
            self._count(event)

    def _count(self, event: Event) -> None:
        found, subject = measurements(event), event.subject
        is_beat = found[0][0] in OF_BEAT
        labels = (subject.task_name, subject.label, is_beat)
        series = self._series.get(labels)
        if series is None:
            series = _Series(OF_BEAT if is_beat else OF_LOCKS, labels[:2])
            self._series[labels] = series
        for measure, value in found:
            series[measure](value)


tally = Tally()
