"""What Prometheus would be told by this process, as text and by its samples."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_dlock.monitoring.prometheus import registry_of


def exposition(store_gauges: Mapping[str, float] | None = None) -> str:
    """The metrics of all processes that count together, and the gauges *store_gauges*."""
    return generate_latest(registry_of(lambda: store_gauges or {})).decode()


def samples(text: str, task: str | None = None) -> dict[str, float]:
    """The values by name (and bucket), of one task or without one."""
    return {
        sample.name + (f" {bucket}" if (bucket := sample.labels.get("le")) else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("task") == task
    }
