"""Metrics for Prometheus, of one process or of all processes of a host.

A prefork worker counts in its children, so ``PROMETHEUS_MULTIPROC_DIR`` has to name a folder that
they share, as ``prometheus_client`` wants it; each process then counts in files of its own there,
and :func:`registry_of` adds them up, in whatever process it is asked.

By default each process starts a file named by its pid, and the sum must keep the files of all that
have ended: a worker that replaces its children (``max_tasks_per_child``) would leave thousands, and
each scrape would read them all. Here a process takes the first number that nobody has, by a lock on
a file that the kernel frees with the process, however that ends, and counts on in its files
(:class:`Slot`).

Every task has two events, that its lock was taken and that it was released. They are kept for half
a second and counted together: counted alone, between all that a task does, they cost it twice as
much. All others are counted at once. What is kept is lost with a process that is killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from celery_dlock import forking
from celery_dlock.core.events import MEASURES, Acquired, Event, Labels, Released
from celery_dlock.core.measures import ACQUISITION, HOLD, WAIT, Measure, MetricKind
from celery_dlock.errors import ConfigurationError
from celery_dlock.monitoring.batching import Batcher

logger = logging.getLogger("celery_dlock")

#: What is used here of the library and not promised by it: it has no other way to tell single
#: metrics where they are to count.
INSIDES = ("ValueClass", "MultiProcessValue", "MutexValue")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def folder() -> Path | None:
    """Where the processes of this host count, if they do so together.

    Raises :exc:`~celery_dlock.ConfigurationError` for one that cannot be written to.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    if not os.access(name, os.W_OK | os.X_OK) or not Path(name).is_dir():
        raise ConfigurationError(
            f"{VARIABLE} must name a folder that this process may write to: create it, "
            "empty, before the first worker of the host starts"
        )
    return Path(name)


class Slot:
    """The number of this process among those that count in the folder."""

    def __init__(self) -> None:
        self._held = -1
        self._name = ""
        forking.tell(self)

    def __call__(self) -> str:
        """Part of the names of its files, which has no underscore. Asked at each step."""
        return self._name or self._take()

    def after_fork_in_child(self) -> None:
        """The parent keeps it."""
        if self._held >= 0:
            os.close(self._held)
        self._held, self._name = -1, ""

    def _take(self) -> str:
        directory = folder()
        assert directory is not None
        for number in count():
            held = os.open(directory / f"dlock-{number}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(held)
            else:
                self._held, self._name = held, f"dlock-{number}"
                return self._name
        raise AssertionError  # there is always one more


def check() -> None:
    """Warn where each process is going to start files of its own."""
    if folder() is not None and _values() is None:
        logger.warning(
            "celery_dlock does not know the internals of this prometheus_client: counts are right, "
            "but each process that starts adds files to %s",
            VARIABLE,
        )


@cache
def _values() -> Any:
    """The module with the library's class of values; ``None`` if that is not there any more.

    Then the library counts as it does by default: right, in ever more files.
    """
    try:
        module = import_module("prometheus_client.values")
    except ImportError:
        return None
    is_known = hasattr(Counter, "_metric_init") and all(hasattr(module, name) for name in INSIDES)
    return module if is_known else None


@cache
def _value_in_slot() -> Any:
    return _values().MultiProcessValue(Slot())


class InSlot:
    """Put before one of the library's metrics, it has its values in the slot's files.

    The class of values is the library's one global, which a metric reads as it is made. Which one
    it is, of one process or of several, was decided when the library was imported.
    """

    def _metric_init(self) -> None:
        library = _values()
        if library is None or library.ValueClass is library.MutexValue:
            super()._metric_init()  # type: ignore[misc]
            return
        usual = library.ValueClass
        library.ValueClass = _value_in_slot()
        try:
            super()._metric_init()  # type: ignore[misc]
        finally:
            library.ValueClass = usual


#: What only the lock store knows, by the names that :func:`registry_of` is given.
STORE_GAUGES: Mapping[str, tuple[str, str]] = {
    "store_up": ("dlock_store_up", "Whether the lock store answers"),
    "store_writable": (
        "dlock_store_writable",
        "Whether the lock store takes writes, without which no task gets a lock",
    ),
    "beat_leads": (
        "dlock_beat_leads",
        "Whether a beat leads, where beats have led before or the configuration names ours",
    ),
    "reading_age": (
        "dlock_reading_age_seconds",
        "Seconds since the keys of the lock store were read, for the gauges below",
    ),
    "held_keys": ("dlock_held_keys", "Keys that are held"),
    "oldest_hold": (
        "dlock_oldest_hold_seconds",
        "Seconds since the first of them was taken, of those whose lease lasts",
    ),
    "waiting_keys": ("dlock_waiting_keys", "Keys with waiting tasks"),
    "waiting_tasks": (
        "dlock_waiting_tasks",
        "Tasks that wait for a key; of rescheduled ones at most 32 for each key",
    ),
    "oldest_wait": (
        "dlock_oldest_wait_seconds",
        "Seconds since the first of them asked for the first time",
    ),
    "unanswered_messages": (
        "dlock_unanswered_messages",
        "Messages whose wakes are not answered: does a worker consume their queue?",
    ),
    "unreadable_keys": ("dlock_unreadable_keys", "Keys that the lock store cannot read"),
    "dead_messages": ("dlock_dead_messages", "Dead letters"),
}

#: How often files are read that come and go, before those that cannot be read are left out.
_READINGS = 5
_UNREADABLE = (OSError, ValueError, RuntimeError, struct.error)


class _Counter(InSlot, Counter):
    pass


class _Gauge(InSlot, Gauge):
    pass


class _Histogram(InSlot, Histogram):
    pass


def _metric(measure: Measure) -> _Counter | _Gauge | _Histogram:
    match measure.kind:
        case MetricKind.COUNTER:
            return _Counter(measure.name, measure.about, Labels._fields)
        case MetricKind.GAUGE:
            return _Gauge(
                measure.name, measure.about, Labels._fields, multiprocess_mode="mostrecent"
            )
        case MetricKind.HISTOGRAM:
            return _Histogram(measure.name, measure.about, Labels._fields, buckets=measure.buckets)


_METRICS = {measure: _metric(measure) for measure in MEASURES}


class _Series(dict[Measure, Callable[[float], None]]):
    """What is counted for the same *labels*.

    All counters start at zero together: Prometheus would not see the first step of one that
    appears with it.
    """

    def __init__(self, group: Iterable[Measure], labels: Labels) -> None:
        super().__init__()
        self._labels = labels
        for measure in group:
            if measure.kind is MetricKind.COUNTER or measure in (ACQUISITION, HOLD, WAIT):
                self.__missing__(measure)

    def __missing__(self, measure: Measure) -> Callable[[float], None]:
        self[measure] = add = _adder(_METRICS[measure].labels(*self._labels))
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


class Tally(Batcher[Event]):
    """Counts events, also those of a signal's handler that interrupts it.

    Whoever forks waits for those who count: a lock of the library that is held as a process is
    forked would be held in the child for ever.
    """

    name = "the metrics"
    batch = 1000

    def __init__(self) -> None:
        super().__init__()
        self._series: dict[tuple[Labels, bool], _Series] = {}
        self._gate = threading.RLock()
        os.register_at_fork(
            before=self._gate.acquire,
            after_in_parent=self._gate.release,
            after_in_child=self._gate.release,
        )

    def __call__(self, event: Event) -> None:
        with self._gate:
            if not isinstance(event, Acquired | Released):
                self._count(event)
                return
            self.put(event)
            if len(self._queue) >= self.batch:
                self.at_exit()

    def at_exit(self) -> None:
        """Count what is kept, here and now."""
        self._write_all()

    def write(self, batch: Sequence[Event], missing: int) -> None:
        """Count *batch*. What fails would fail again, and half of it be counted twice."""
        try:
            for event in batch:
                self._count(event)
        except Exception:
            logger.exception("events of locks could not be counted")

    def _write_all(self) -> bool:
        with self._gate:
            return super()._write_all()

    def _count(self, event: Event) -> None:
        measured = event.measured()
        if not measured:
            return
        labels, of_beat = Labels.of(event.subject), measured[0][0].of_beat
        series = self._series.get((labels, of_beat))
        if series is None:
            group = [measure for measure in MEASURES if measure.of_beat is of_beat]
            series = self._series[labels, of_beat] = _Series(group, labels)
        for measure, value in measured:
            series[measure](value)


tally = Tally()


class PrometheusSink:
    """Counts what happens; all sinks of a process count in the same metrics."""

    def unseen(self) -> str:
        """Why nobody can see what a process counts that serves no metrics itself."""
        if folder() is None:
            return f"{VARIABLE} is not set"
        library = _values()
        if library is not None and library.ValueClass is library.MutexValue:
            return f"{VARIABLE} was set after prometheus_client was imported"
        return ""

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """Raises :exc:`~celery_dlock.ConfigurationError` for a folder that cannot be used."""
        check()
        return cls()

    def __call__(self, event: Event) -> None:
        tally(event)


def registry_of(store_gauges: Callable[[], Mapping[str, float]]) -> CollectorRegistry:
    """The metrics of all processes of this host that count together, to be written or served.

    *store_gauges* looks up gauges of the lock store, by the names of :data:`STORE_GAUGES`. Where
    ``PROMETHEUS_MULTIPROC_DIR`` is not set the metrics are those of this process alone.

    Raises :exc:`~celery_dlock.ConfigurationError` for a folder that cannot be used.
    """
    registry = CollectorRegistry()
    directory = folder()
    registry.register(_ProcessCollector() if directory is None else _Files(directory))
    registry.register(_StoreGauges(store_gauges))
    return registry


class _ProcessCollector:
    """What this process has counted."""

    def collect(self) -> Iterable[Metric]:
        tally.at_exit()
        for metric in _METRICS.values():
            yield from metric.collect()


class _Files:
    """The sum over the files of the folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        tally.at_exit()
        for _ in range(_READINGS):
            try:
                return _sum(self._files())
            except _UNREADABLE:
                continue
        return _sum([file for file in self._files() if _is_readable(file)])

    def _files(self) -> list[str]:
        """One that was only begun is empty."""
        return [str(file) for file in self._directory.glob("*.db") if file.stat().st_size]


def _sum(files: list[str]) -> Iterable[Metric]:
    return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]


def _is_readable(file: str) -> bool:
    try:
        _sum([file])
    except _UNREADABLE:
        logger.exception("%s cannot be read and is left out of the metrics", file)
        return False
    return True


class _StoreGauges:
    """Gauges that are looked up whenever somebody asks."""

    def __init__(self, look_up: Callable[[], Mapping[str, float]]) -> None:
        self._look_up = look_up

    def collect(self) -> Iterable[Metric]:
        for name, value in self._look_up().items():
            metric, about = STORE_GAUGES[name]
            yield GaugeMetricFamily(metric, about, value=value)
