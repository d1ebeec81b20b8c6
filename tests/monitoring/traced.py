"""The sink ``opentelemetry`` of a worker whose spans go to the journal of its lab."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from celery_dlock.monitoring.otel import OpenTelemetrySink
from tests.services.lab import Journal


class ToJournal(SpanExporter):
    """Writes each span as an entry ``span``."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        folder = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())["folder"]
        for span in spans:
            assert span.context is not None
            Journal(Path(folder) / "journal").write(
                "span",
                name=span.name,
                trace=span.context.trace_id,
                span=span.context.span_id,
                parent=span.parent and span.parent.span_id,
                began=span.start_time,
                ended=span.end_time,
                attributes=dict(span.attributes or {}),
            )
        return SpanExportResult.SUCCESS


class Traced(OpenTelemetrySink):
    """Sets the provider up in each process, as an application has to."""

    @classmethod
    def from_app(cls, app: Any) -> Traced:
        if not isinstance(trace.get_tracer_provider(), TracerProvider):
            provider = TracerProvider()
            provider.add_span_processor(SimpleSpanProcessor(ToJournal()))
            trace.set_tracer_provider(provider)
        return cls()
