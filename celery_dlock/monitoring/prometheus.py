"""Metrics for Prometheus, of one process or of all processes of a host.

A prefork worker counts in its children, so ``PROMETHEUS_MULTIPROC_DIR`` has to name a folder that
they share, as ``prometheus_client`` wants it; each process then counts in files of its own there,
and :func:`registry_of` adds them up, in whatever process it is asked.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from celery_dlock.core.events import Event
from celery_dlock.monitoring.counting import METRICS, tally
from celery_dlock.monitoring.slots import check, folder

logger = logging.getLogger("celery_dlock")

#: What only the lock store knows, by the names that :func:`registry_of` is given.
STANDING: Mapping[str, tuple[str, str]] = {
    "store_up": ("dlock_store_up", "Whether the lock store answered, for the gauges below"),
    "held_keys": ("dlock_held_keys", "Keys that are held"),
    "waiting_keys": ("dlock_waiting_keys", "Keys with messages that wait"),
    "waiting_messages": ("dlock_waiting_messages", "Messages that wait in the lock store"),
    "oldest_wait": ("dlock_oldest_wait_seconds", "Seconds for which the oldest of them has waited"),
    "dead_messages": ("dlock_dead_messages", "Messages that are dead, and kept"),
}

#: How often files are read that come and go, before those that cannot be read are left out.
_READINGS = 5
_UNREADABLE = (OSError, ValueError, RuntimeError, struct.error)


class PrometheusSink:
    """Counts what happens; all sinks of a process count in the same metrics."""

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """Raises :exc:`~celery_dlock.ConfigurationError` for a folder that cannot be used."""
        check()
        return cls()

    def __call__(self, event: Event) -> None:
        tally(event)


def registry_of(standing: Callable[[], Mapping[str, float]]) -> CollectorRegistry:
    """The metrics of all processes of this host that count together, to be written or served.

    *standing* looks up gauges of the lock store, by the names of :data:`STANDING`. Where
    ``PROMETHEUS_MULTIPROC_DIR`` is not set the metrics are those of this process alone.

    Raises :exc:`~celery_dlock.ConfigurationError` for a folder that cannot be used.
    """
    registry = CollectorRegistry()
    where = folder()
    registry.register(_Own() if where is None else _Files(where))
    registry.register(_Standing(standing))
    return registry


class _Own:
    """What this process has counted."""

    def collect(self) -> Iterable[Metric]:
        tally.at_end()
        for metric in METRICS.values():
            yield from metric.collect()


class _Files:
    """The sum over the files of the folder."""

    def __init__(self, where: Path) -> None:
        self._where = where

    def collect(self) -> Iterable[Metric]:
        tally.at_end()
        for _ in range(_READINGS):
            try:
                return _sum(self._files())
            except _UNREADABLE:
                continue
        return _sum([file for file in self._files() if _is_readable(file)])

    def _files(self) -> list[str]:
        """One that was only begun is empty."""
        return [str(file) for file in self._where.glob("*.db") if file.stat().st_size]


def _sum(files: list[str]) -> Iterable[Metric]:
    return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]


def _is_readable(file: str) -> bool:
    try:
        _sum([file])
    except _UNREADABLE:
        logger.exception("%s is left out of the metrics: it cannot be read", file)
        return False
    return True


class _Standing:
    """Gauges that are looked up whenever somebody asks."""

    def __init__(self, look_up: Callable[[], Mapping[str, float]]) -> None:
        self._look_up = look_up

    def collect(self) -> Iterable[Metric]:
        for name, value in self._look_up().items():
            metric, about = STANDING[name]
            yield GaugeMetricFamily(metric, about, value=value)
