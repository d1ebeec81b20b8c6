"""Metrics for DogStatsD, by the client of the package ``datadog``, which its own variables set up.

Sending goes over a thread of the client's: a name that takes its time to be resolved, or an agent
that is away, holds up nobody.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from datadog.dogstatsd.base import DogStatsd

from celery_dlock.core.events import Event
from celery_dlock.monitoring.endings import tell_end
from celery_dlock.monitoring.measures import Kind, measurements

#: How many packets wait to be sent before new ones are dropped.
LONGEST_QUEUE = 1000

#: Seconds for what is left as the process ends.
LAST_WORDS = 5.0


class StatsdSink:
    """Sends each measurement, with the tags ``task`` and ``template``."""

    def __init__(self) -> None:
        self._client: Any = None
        self._mutex = threading.Lock()
        self._tags: dict[tuple[str, str], list[str]] = {}

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """One for this process: a forked one has its own."""
        return cls()

    def __call__(self, event: Event) -> None:
        client, subject = self._client or self._started(), event.subject
        labels = (subject.task_name, subject.label)
        tags = self._tags.get(labels)
        if tags is None:
            tags = self._tags[labels] = [f"task:{labels[0]}", f"template:{labels[1]}"]
        for measure, value in measurements(event):
            match measure.kind:
                case Kind.COUNTER:
                    client.increment(measure.name, value, tags=tags)
                case Kind.HISTOGRAM:
                    client.histogram(measure.name, value, tags=tags)
                case Kind.GAUGE:
                    client.gauge(measure.name, value, tags=tags)

    def _started(self) -> Any:
        """Not before it is needed: it starts threads, and a process that forks may need none."""
        with self._mutex:
            if self._client is None:
                self._client = DogStatsd(
                    disable_telemetry=True,
                    disable_buffering=False,
                    disable_background_sender=False,
                    sender_queue_size=LONGEST_QUEUE,
                    sender_queue_timeout=0,
                    track_instance=False,  # or a fork would wait until all is sent
                )
                tell_end(self)
            return self._client

    def at_end(self) -> None:
        """Send what is left."""
        self._client.stop(LAST_WORDS)
