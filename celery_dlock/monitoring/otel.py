"""OpenTelemetry: metrics and spans, by whatever provider the application has set up.

Only the API is needed. A prefork worker sets up its provider in each child (on Celery's signal
``worker_process_init``), as OpenTelemetry's own instrumentation of Celery wants it.

Spans for the waiting for a lock and for its holding are made when they are over. Each is a child of
the span that is current where the lock is taken, as Celery's instrumentation makes one for every
run. A wait goes over several runs, in several processes: the message carries the context (W3C
``traceparent``) of the span that sent it away, and the wait is linked to that.

Where no span is current, the first ask that is refused makes one, ``dlock ask``. The message
carries its context, and all that follows becomes its children: one trace for one task. A trace id
made from the task's id would need no message to carry it, but its root would never exist, and
no sampler would be asked: each trace would be kept, or none. A lock that is taken at once is a
trace of one span.

Spans, unlike metrics, name the key.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from celery_dlock.core.events import (
    MEASURES,
    Acquired,
    Contended,
    DeadLettered,
    Event,
    Labels,
    Lost,
    Parked,
    Released,
    Rescheduled,
    Revoked,
    Skipped,
    StaleRejected,
    Subject,
    TimedOut,
    Unavailable,
)
from celery_dlock.core.measures import Measure, MetricKind

WAIT, HOLD, ASK = "dlock wait", "dlock hold", "dlock ask"

#: What a message carries beside the trace context: how often it was sent away, and since when.
ATTEMPT, SINCE = "dlock.attempt", "dlock.since"

_wire = TraceContextTextMapPropagator()


@dataclass(slots=True)
class _Held:
    """A lock that is held now; ``context`` is that of the parent."""

    since: int
    context: Context
    links: tuple[Link, ...]
    attributes: dict[str, Any]
    status: Status | None = None


@dataclass(slots=True)
class _Asking:
    """What this thread's delivery has said so far: its first refusal, in ns, and its own span."""

    subject: Subject
    refused: int | None = None
    span: Span | None = None


@dataclass(slots=True)
class Spans:
    """Makes them of the events of one process."""

    tracer: Tracer
    _held: dict[Subject, _Held] = field(default_factory=dict[Subject, _Held])
    _thread: threading.local = field(default_factory=threading.local)

    def tell(self, event: Event) -> None:
        """Most events are no part of a span."""
        match event:
            case Contended():
                asking = self._asking(event.subject)
                if asking.refused is None:
                    asking.refused = time.time_ns()
            case Parked() | Rescheduled():
                self._sent_away(event.subject)
            case Acquired():
                self._acquired(event)
            case Released() | Lost() | Unavailable():
                self._held_no_more(event)
            case StaleRejected():
                if held := self._held.get(event.subject):
                    held.status = Status(StatusCode.ERROR, f"stale write of {event.resource}")
            case TimedOut() | Skipped() | Revoked() | DeadLettered():
                self._waits_no_more(event)
            case _:
                pass

    def carry(self, subject: Subject) -> dict[str, str]:
        """What its message tells those who get it next. It may not be sent after all."""
        carried_before = subject.carried
        carried = {
            ATTEMPT: str((_number(subject, ATTEMPT) or 0) + 1),
            SINCE: carried_before.get(SINCE) or str(time.time_ns()),
        }
        current = trace.get_current_span()
        if current.get_span_context().is_valid:
            _wire.inject(carried)
        elif "traceparent" not in carried_before:
            asking = self._asking(subject)
            if asking.span is None:
                attributes = _attributes(subject)
                asking.span = self.tracer.start_span(ASK, Context(), attributes=attributes)
            _wire.inject(carried, trace.set_span_in_context(asking.span, Context()))
        return carried

    def _asking(self, subject: Subject) -> _Asking:
        asking: _Asking | None = getattr(self._thread, "asking", None)
        if asking is None or asking.subject is not subject:
            asking = self._thread.asking = _Asking(subject)
        return asking

    def _sent_away(self, subject: Subject) -> None:
        """Its message is on its way; a span that is never ended is never seen."""
        span = self._asking(subject).span
        self._thread.asking = None
        if span is not None:
            span.end()

    def _acquired(self, event: Acquired) -> None:
        now, subject = time.time_ns(), event.subject
        since = self._asking(subject).refused
        self._thread.asking = None
        if event.waited:
            since = now - int(event.waited * 1e9)
        context, links = _parent(subject)
        attributes = {
            **_attributes(subject, event.keys),
            "dlock.fencing_tokens": event.tokens,
        }
        if since is not None:
            span = self.tracer.start_span(
                WAIT, context, attributes=attributes, links=links, start_time=since
            )
            span.end(now)
            links = ()
            if not trace.get_current_span(context).get_span_context().is_valid:
                context = trace.set_span_in_context(span, context)
        self._held[subject] = _Held(now, context, links, attributes)

    def _held_no_more(self, event: Released | Lost | Unavailable) -> None:
        self._sent_away(event.subject)
        held = self._held.pop(event.subject, None)
        if held is None:
            return
        span = self.tracer.start_span(
            HOLD,
            held.context,
            attributes=held.attributes,
            links=held.links,
            start_time=held.since,
        )
        match event:
            case Lost(newer=None):
                span.set_status(Status(StatusCode.ERROR, event.reason))
            case Lost():
                span.set_attribute("dlock.outcome", event.reason)
            case Unavailable():
                span.set_status(Status(StatusCode.ERROR, event.error))
            case Released():
                span.set_attribute("dlock.outcome", str(event.outcome))
        if held.status is not None:
            span.set_status(held.status)
        span.end()

    def _waits_no_more(self, event: TimedOut | Skipped | Revoked | DeadLettered) -> None:
        subject, now = event.subject, time.time_ns()
        self._thread.asking = None
        waited = event.waited if isinstance(event, TimedOut) else 0.0
        since = now - int(waited * 1e9) if waited else _number(subject, SINCE)
        if since is None:
            return
        context, links = _parent(subject)
        attributes = {
            **_attributes(subject, (event.key,)),
            "dlock.end": type(event).__name__,
        }
        span = self.tracer.start_span(
            WAIT, context, attributes=attributes, links=links, start_time=since
        )
        if isinstance(event, TimedOut | DeadLettered):
            span.set_status(Status(StatusCode.ERROR, type(event).__name__))
        span.end(now)


def _parent(subject: Subject) -> tuple[Context, tuple[Link, ...]]:
    """The context to make a span in, and what it is linked to besides."""
    carried = trace.get_current_span(
        _wire.extract(dict(subject.carried), Context())
    ).get_span_context()
    current = trace.get_current_span()
    if not current.get_span_context().is_valid:
        return trace.set_span_in_context(trace.NonRecordingSpan(carried), Context()), ()
    links = (Link(carried),) if carried.is_valid else ()
    return trace.set_span_in_context(current, Context()), links


def _attributes(subject: Subject, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "celery.task_name": subject.task_name,
        "messaging.message.id": subject.task_id,
        "dlock.template": subject.label,
        "dlock.attempt": _number(subject, ATTEMPT) or 0,
        **({"dlock.keys": keys} if keys else {}),
    }


def _number(subject: Subject, name: str) -> int | None:
    """The number that the message carries under *name*, if it does."""
    text = subject.carried.get(name, "")
    return int(text) if text.isdecimal() else None


SCOPE = "celery_dlock"


class OpenTelemetrySink:
    """Measures, and has spans made."""

    def __init__(self) -> None:
        meter = metrics.get_meter(SCOPE)
        self._record = {measure: _recorder(meter, measure) for measure in MEASURES}
        self._spans = Spans(trace.get_tracer(SCOPE))
        self.carry = self._spans.carry

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """One for this process: a forked one has its own."""
        return cls()

    def __call__(self, event: Event) -> None:
        attributes = _attributes_of(Labels.of(event.subject))
        for measure, value in event.measured():
            self._record[measure](value, attributes)
        self._spans.tell(event)


@cache
def _attributes_of(labels: Labels) -> dict[str, str]:
    return labels._asdict()


def _recorder(meter: metrics.Meter, measure: Measure) -> Any:
    name, about = measure.name, measure.about
    match measure.kind:
        case MetricKind.COUNTER:
            return meter.create_counter(name, description=about).add
        case MetricKind.GAUGE:
            return meter.create_gauge(name, unit="s", description=about).set
        case MetricKind.HISTOGRAM:
            return meter.create_histogram(
                name,
                unit="s",
                description=about,
                explicit_bucket_boundaries_advisory=measure.buckets,
            ).record
