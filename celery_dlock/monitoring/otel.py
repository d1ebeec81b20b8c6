"""OpenTelemetry: metrics and spans, by whatever provider the application has set up.

Only the API is needed. A prefork worker sets up its provider in each child (on Celery's signal
``worker_process_init``), as OpenTelemetry's own instrumentation of Celery wants it.
"""

from __future__ import annotations

from typing import Any, Self

from opentelemetry import metrics, trace

from celery_dlock.core.events import Event, Subject
from celery_dlock.monitoring.measures import MEASURES, Kind, Measure, measurements
from celery_dlock.monitoring.spans import Spans

SCOPE = "celery_dlock"


class OpenTelemetrySink:
    """Measures, and has spans made."""

    def __init__(self) -> None:
        meter = metrics.get_meter(SCOPE)
        self._record = {measure: _recorder(meter, measure) for measure in MEASURES}
        self._attributes: dict[tuple[str, str], dict[str, str]] = {}
        self._spans = Spans(trace.get_tracer(SCOPE))
        self.carry = self._spans.carry

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """One for this process: a forked one has its own."""
        return cls()

    def __call__(self, event: Event) -> None:
        attributes = self._attributes_of(event.subject)
        for measure, value in measurements(event):
            self._record[measure](value, attributes)
        self._spans.tell(event)

    def _attributes_of(self, subject: Subject) -> dict[str, str]:
        labels = (subject.task_name, subject.label)
        found = self._attributes.get(labels)
        if found is None:
            found = self._attributes[labels] = {"task": labels[0], "template": labels[1]}
        return found


def _recorder(meter: metrics.Meter, measure: Measure) -> Any:
    name, about = measure.name, measure.about
    match measure.kind:
        case Kind.COUNTER:
            return meter.create_counter(name, description=about).add
        case Kind.GAUGE:
            return meter.create_gauge(name, unit="s", description=about).set
        case Kind.HISTOGRAM:
            return meter.create_histogram(
                name,
                unit="s",
                description=about,
                explicit_bucket_boundaries_advisory=measure.buckets,
            ).record
