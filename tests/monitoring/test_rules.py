"""The rules for Prometheus, by its own ``promtool``: each alert at its line, and not below it."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.monitoring.measures import MEASURES, MetricKind
from celery_dlock.monitoring.prometheus import STORE_GAUGES
from tests.services.require import require

pytestmark = [pytest.mark.server("promtool"), pytest.mark.once]

RULES = str(files("celery_dlock.monitoring") / "rules.yml")
LABELS = 'job="shop",task="charge",template="order:{order}"'

#: Series by name and further labels, as a value at the start and a step each minute.
Series = dict[str, str]


def histogram(name: str, total: int, **below: int) -> Series:
    """So many are observed each minute, of which some lie *below* a bound, written ``le15``."""
    bounds = {**{bound[2:]: count for bound, count in below.items()}, "+Inf": total}
    return {
        f'{name}_bucket{{{LABELS},le="{bound}"}}': f"0+{count}x30"
        for bound, count in bounds.items()
    } | {f"{name}_count{{{LABELS}}}": f"0+{total}x30"}


def counter(name: str, step: int) -> Series:
    return {f"{name}{{{LABELS}}}": f"0+{step}x30"}


def asked(refused: int, at_once: int, timed_out: int = 0) -> Series:
    """So many tasks are refused, and the others are not; of the first some wait in vain."""
    return {
        **counter("dlock_refused_total", refused),
        **counter("lock_acquisition_time_count", at_once + refused - timed_out),
        **counter("dlock_wait_seconds_count", refused),
        **counter("dlock_timed_out_total", timed_out),
    }


TTL = {f"lock_ttl_seconds{{{LABELS}}}": "30+0x30"}

#: What fires, below its line and above it. The lines are 15 s, 30 %, 5 % and zero.
CASES: list[tuple[str, Series, Series]] = [
    (
        "LockAcquisitionSlow",
        histogram("lock_acquisition_time", 10_000, le10=0, le15=9901, le30=10_000) | TTL,
        histogram("lock_acquisition_time", 10_000, le10=0, le15=9899, le30=10_000) | TTL,
    ),
    (
        "LockContentionHigh",
        asked(refused=299, at_once=701),
        asked(refused=301, at_once=699),
    ),
    (
        "LockTimeouts",
        counter("dlock_timed_out_total", 49) | counter("lock_acquisition_time_count", 951),
        counter("dlock_timed_out_total", 51) | counter("lock_acquisition_time_count", 949),
    ),
    (
        "StaleWriteRejected",
        counter("dlock_stale_rejected_total", 0) | counter("lock_acquisition_time_count", 1000),
        {f"dlock_stale_rejected_total{{{LABELS}}}": "0x18 1x12"}
        | counter("lock_acquisition_time_count", 1000),
    ),
    (
        "StaleWriteRejected",
        {f"dlock_stale_rejected_total{{{LABELS}}}": "_x18 0x12"},
        {f"dlock_stale_rejected_total{{{LABELS}}}": "_x18 1x12"},
    ),
    (
        "StaleWriteRejected",
        {f"dlock_stale_rejected_total{{{LABELS}}}": "1x5 _x11 1x12"},
        {f"dlock_stale_rejected_total{{{LABELS}}}": "1x5 _x11 1x0 2x12"}
        | counter("lock_acquisition_time_count", 1000),
    ),
    ("DeadMessages", {"dlock_dead_messages": "0x30"}, {"dlock_dead_messages": "1x30"}),
    (
        "WaitsForLong",
        {"dlock_oldest_wait_seconds": "900x30"},
        {"dlock_oldest_wait_seconds": "901x30"},
    ),
    ("LockStoreDown", {"dlock_store_up": "1x30"}, {"dlock_store_up": "0x30"}),
]


def evaluate(folder: Path, series: Series, expected: dict[str, dict[str, float]]) -> None:
    """What expressions give after 20 minutes of *series*, by the labels of their samples."""
    test: dict[str, Any] = {
        "rule_files": [RULES],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": expr,
                        "eval_time": "20m",
                        "exp_samples": [{"labels": s, "value": v} for s, v in samples.items()],
                    }
                    for expr, samples in expected.items()
                ],
            }
        ],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(test))  # which is YAML, too
    promtool("test", "rules", str(file))


def promtool(*arguments: str) -> None:
    command = [str(require("promtool")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_sound() -> None:
    promtool("check", "rules", RULES)


@pytest.mark.parametrize(("alert", "below", "above"), CASES)
def test_an_alert_fires_at_its_line_and_not_below_it(
    alert: str, below: Series, above: Series, tmp_path: Path
) -> None:
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'

    evaluate(tmp_path, below, {firing: {}})
    evaluate(tmp_path, above, {firing: {f'{{alertname="{alert}"}}': 1}})


def test_a_lease_that_is_renewed_for_long_alerts_nobody(tmp_path: Path) -> None:
    evaluate(
        tmp_path,
        histogram("lock_hold_duration", 1, le30=0) | TTL,
        {"count by (alertname) (ALERTS)": {}},
    )


def test_the_rates_have_the_names_of_the_literature(tmp_path: Path) -> None:
    series = {
        **histogram("lock_acquisition_time", 60, le1=0, le2=60),
        **histogram("lock_hold_duration", 60, le1=0, le2=60),
        **asked(refused=20, at_once=55, timed_out=15),
        **counter("dlock_stale_rejected_total", 6),
    }
    values = {
        "lock_acquisition_time_p99": 1.99,
        "lock_hold_duration_p99": 1.99,
        "lock_contention_rate": 0.27,
        "lock_timeout_rate": 0.2,
        "fencing_token_reject_rate": 0.1,
    }

    rounded = {f"round({name}, 0.01)": {f"{{{LABELS}}}": value} for name, value in values.items()}
    evaluate(tmp_path, series, rounded)


def test_every_alert_is_tried() -> None:
    lines = Path(RULES).read_text().splitlines()
    alerts = {line.split("alert:")[1].strip() for line in lines if "alert:" in line}
    assert alerts == {alert for alert, _, _ in CASES}


def test_nothing_is_asked_that_nobody_measures() -> None:
    text = Path(RULES).read_text()
    known = {metric for metric, _ in STORE_GAUGES.values()}
    known |= set(re.findall(r"record: (\w+)", text))
    for measure in MEASURES:
        known |= {
            MetricKind.COUNTER: {f"{measure.name}_total"},
            MetricKind.GAUGE: {measure.name},
            MetricKind.HISTOGRAM: {f"{measure.name}_{part}" for part in ("bucket", "count", "sum")},
        }[measure.kind]

    assert set(re.findall(r"\b(?:d?lock|fencing)_\w+", text)) <= known
