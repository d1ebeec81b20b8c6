"""Metrics for DogStatsD, by the client of the package ``datadog``, which its own variables set up.

Sending goes over a thread of the client's: a name that takes its time to be resolved, or an agent
that is unavailable, holds up nobody.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

from datadog.dogstatsd.base import DogStatsd

from celery_dlock.core.events import Event, Labels
from celery_dlock.core.measures import MetricKind
from celery_dlock.forking import PerProcess
from celery_dlock.monitoring.batching import call_at_exit

#: How many packets wait to be sent before new ones are dropped.
LONGEST_QUEUE = 1000

#: Seconds for what is left as the process ends.
EXIT_TIMEOUT = 5.0


class StatsdSink:
    """Sends each measurement, with its labels as tags."""

    def __init__(self) -> None:
        # Not before it is needed: it starts threads, and a process that forks may need none.
        self._client = PerProcess(self._start)

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """One for this process: a forked one has its own."""
        return cls()

    def __call__(self, event: Event) -> None:
        client = self._client()
        tags = _tags(Labels.of(event.subject))
        for measure, value in event.measured():
            match measure.kind:
                case MetricKind.COUNTER:
                    client.increment(measure.name, value, tags=tags)
                case MetricKind.HISTOGRAM:
                    client.histogram(measure.name, value, tags=tags)
                case MetricKind.GAUGE:
                    client.gauge(measure.name, value, tags=tags)

    def _start(self) -> DogStatsd:
        call_at_exit(self)
        return DogStatsd(
            disable_telemetry=True,
            disable_buffering=False,
            disable_background_sender=False,
            sender_queue_size=LONGEST_QUEUE,
            sender_queue_timeout=0,
            track_instance=False,  # or a fork would wait until all is sent
        )

    def at_exit(self) -> None:
        """Send what is left."""
        client = self._client.made()
        if client is not None:
            client.stop(EXIT_TIMEOUT)


@cache
def _tags(labels: Labels) -> list[str]:
    return [f"{name}:{value}" for name, value in labels._asdict().items()]
