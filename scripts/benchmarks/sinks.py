"""What each sink costs the task for an event, in µs: ``python -m scripts.benchmarks.sinks URL``.

The events are those of a task that gets its lock at once, ``Acquired`` and ``Released``. In a
process of its own, as the libraries decide at their import how they work.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Celery
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_dlock.core.events import Event
from celery_dlock.registry import sink_named
from scripts.benchmarks.measure import in_turns
from tests.monitoring.happenings import about, acquired, released

SINKS = ("prometheus", "opentelemetry", "statsd", "events")
TIMES, ROUNDS = 2000, 5


def timed(sink: Callable[[Event], None]) -> float:
    """Events a second of the thread's own processor time."""
    events = acquired(about()), released(about())
    began = time.thread_time()
    for _ in range(TIMES):
        for event in events:
            sink(event)
    return TIMES * len(events) / (time.thread_time() - began)


def main() -> None:
    tracing = TracerProvider()
    tracing.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(MeterProvider())
    app = Celery("sinks", broker=sys.argv[1], set_as_current=False)
    os.environ.update(DD_AGENT_HOST="127.0.0.1")
    made: dict[str, Any] = {name: sink_named(name).from_app(app) for name in SINKS}
    found = in_turns({name: partial(timed, sink) for name, sink in made.items()}, ROUNDS)
    print(json.dumps({row.name: 1e6 / row.rate for row in found}), flush=True)
    os._exit(0)  # what is left to be sent is nobody's


if __name__ == "__main__":
    main()
