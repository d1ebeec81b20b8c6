"""The rules for Prometheus, by its own ``promtool``: each alert at its line, and not below it."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery import Celery
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_dlock.beat.leader import Leader, key_of
from celery_dlock.beat.tick_ledger import TickLedger
from celery_dlock.cli.serve import registry_of_app
from celery_dlock.core.events import MEASURES, Labels
from celery_dlock.core.lease import SECOND
from celery_dlock.core.measures import MetricKind
from celery_dlock.core.state import Cause, Claim, Outcome, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.monitoring.prometheus import STORE_GAUGES
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing import ManualClock
from tests.services.require import require

pytestmark = [pytest.mark.server("promtool"), pytest.mark.once]

RULES = str(files("celery_dlock.monitoring") / "rules.yml")
LABELS = 'job="shop",task="charge",template="order:{order}"'


def test_the_page_names_each_metric_and_each_series_that_the_rules_record() -> None:
    page = Path("docs/how-to/metrics.rst").read_text(encoding="utf-8")

    names = re.findall(r"record: (\w+)", Path(RULES).read_text(encoding="utf-8"))
    names += [measure.name for measure in MEASURES]
    names += [metric for metric, _ in STORE_GAUGES.values()]
    assert [name for name in names if f"``{name}``" not in page] == []


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
        **counter("dlock_acquisition_seconds_count", at_once + refused - timed_out),
        **counter("dlock_wait_seconds_count", refused),
        **counter("dlock_timed_out_total", timed_out),
    }


TTL = {f"dlock_ttl_seconds{{{LABELS}}}": "30+0x30"}

AN_INSTANT = datetime(2026, 11, 27, tzinfo=UTC)

UP = {"dlock_store_up": "1x30", "dlock_reading_age_seconds": "5x30"}

#: What fires, below its line and above it. The lines are 15 s, 30 %, 5 % and zero.
CASES: list[tuple[str, Series, Series]] = [
    (
        "LockAcquisitionSlow",
        histogram("dlock_acquisition_seconds", 10_000, le10=0, le15=9901, le30=10_000) | TTL,
        histogram("dlock_acquisition_seconds", 10_000, le10=0, le15=9899, le30=10_000) | TTL,
    ),
    ("LockContentionHigh", asked(refused=299, at_once=701), asked(refused=301, at_once=699)),
    (
        "LockTimeouts",
        counter("dlock_timed_out_total", 49) | counter("dlock_acquisition_seconds_count", 951),
        counter("dlock_timed_out_total", 51) | counter("dlock_acquisition_seconds_count", 949),
    ),
    (
        "StaleWriteRejected",
        counter("dlock_stale_rejected_total", 0) | counter("dlock_acquisition_seconds_count", 1000),
        {f"dlock_stale_rejected_total{{{LABELS}}}": "0x18 1x12"}
        | counter("dlock_acquisition_seconds_count", 1000),
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
        | counter("dlock_acquisition_seconds_count", 1000),
    ),
    ("DeadMessages", {"dlock_dead_messages": "0x30"}, {"dlock_dead_messages": "1x30"}),
    (
        "WaitsForLong",
        {"dlock_oldest_wait_seconds": "900x30"},
        {"dlock_oldest_wait_seconds": "901x30"},
    ),
    ("LocksLost", counter("dlock_lost_total", 0), {f"dlock_lost_total{{{LABELS}}}": "0x12 1x18"}),
    ("NoBeatLeads", {"dlock_beat_leads": "1x30"}, {"dlock_beat_leads": "0x30"}),
    (
        "TicksMissed",
        {f"dlock_beat_missed_total{{{LABELS}}}": "1x30"},
        {f"dlock_beat_missed_total{{{LABELS}}}": "1x12 2x18"},
    ),
    (
        "TicksMissed",
        {f"dlock_beat_missed_total{{{LABELS}}}": "1x5 _x11 1x12"},
        {f"dlock_beat_missed_total{{{LABELS}}}": "_x18 1x12"},
    ),
    ("UnreadableKeys", {"dlock_unreadable_keys": "0x30"}, {"dlock_unreadable_keys": "1x30"}),
    (
        "LockStoreDown",
        {"dlock_store_up": "1x30", "dlock_reading_age_seconds": "1x30"},
        {"dlock_store_up": "0x30"},
    ),
    (
        "LockStoreRefusesWrites",
        {"dlock_store_writable": "1x30"} | UP,
        {"dlock_store_writable": "0x30"} | UP,
    ),
    (
        "GaugesOld",
        {"dlock_store_up": "1x30", "dlock_reading_age_seconds": "300x30"},
        {"dlock_store_up": "1x30", "dlock_reading_age_seconds": "301x30"},
    ),
    ("GaugesOld", UP, {"dlock_store_up": "1x30"}),
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


def alerting() -> list[dict[str, Any]]:
    """The rules that alert."""
    groups = yaml.safe_load(Path(RULES).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


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


@pytest.fixture
def store(app: Celery) -> LockBackend:
    return runtime(app).backend


def scraped(app: Celery, **others: float) -> Series:
    """The gauges that `dlock metrics` tells of *app*, for half an hour; or *others*."""
    text = generate_latest(registry_of_app(app, gauges=True, waits=True)).decode()
    names = {metric for metric, _ in STORE_GAUGES.values()}
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in names
    }
    return {name: f"{value}x30" for name, value in (found | others).items()}


def claim(key: str, task: str) -> Claim:
    return Claim(key, f"{task}:0:0", "nonce", ttl=3600 * SECOND, wait=WaitMode.QUEUE)


def away(*_: Any) -> Any:
    raise BackendUnavailable("away")


def alerts(folder: Path, series: Series, *expected: str) -> None:
    """*expected* fire, and no other is going to."""
    firing = {f'{{alertname="{alert}"}}': 1.0 for alert in expected}
    evaluate(folder, series, {"count by (alertname) (ALERTS)": firing})


def test_a_healthy_system_with_two_beats_alerts_nobody(
    app: Celery, store: LockBackend, clock: ManualClock, tmp_path: Path
) -> None:
    leads, stands_by = claim(key_of(app), "leads"), Leader(app)
    store.enter(leads)
    stands_by.campaign()
    for _ in range(16 * 60 // 4):
        clock.advance(4)
        store.renew([leads])
        stands_by.campaign()

    alerts(tmp_path, scraped(app))


def test_a_healthy_system_with_very_many_keys_alerts_nobody(app: Celery, tmp_path: Path) -> None:
    """Reading them takes half a minute, and each scrape is told what was read before."""
    many = {"dlock_held_keys": 100_000.0, "dlock_waiting_tasks": 100_000.0}
    alerts(tmp_path, scraped(app, **many, dlock_reading_age_seconds=150.0))


@pytest.mark.parametrize(
    ("refused", "alert"), [("look", "LockStoreDown"), ("enter", "LockStoreRefusesWrites")]
)
def test_a_store_that_is_away_or_refuses_writes_alerts_once(
    app: Celery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: str, alert: str
) -> None:
    monkeypatch.setattr(runtime(app).backend, refused, away)
    alerts(tmp_path, scraped(app), alert)


def test_a_task_that_waits_for_long_alerts_once(
    app: Celery, store: LockBackend, clock: ManualClock, tmp_path: Path
) -> None:
    store.enter(claim("order:42", "holds"))
    store.enter(claim("order:42", "waits"), b"message")
    clock.advance(16 * 60)
    alerts(tmp_path, scraped(app), "WaitsForLong")


def test_a_beat_that_nobody_leads_alerts_until_one_does(
    app: Celery, store: LockBackend, clock: ManualClock, tmp_path: Path
) -> None:
    """Of an application without beats nothing is known, and nobody is alerted."""
    assert "dlock_beat_leads" not in scraped(app)
    dead, another = Leader(app), Leader(app)
    assert dead.campaign()
    assert dead.lease
    TickLedger(store, dead.key, dead.lease.fencing_token).claim("ten", AN_INSTANT, AN_INSTANT)
    led = scraped(app)
    clock.advance(31)
    alerts(tmp_path, scraped(app), "NoBeatLeads")

    assert another.campaign()
    assert led["dlock_beat_leads"] == scraped(app)["dlock_beat_leads"] == "1.0x30"
    alerts(tmp_path, scraped(app) | {"dlock_beat_leads": "0x10 1x20"})


def test_a_dead_letter_alerts_once(
    app: Celery, store: LockBackend, clock: ManualClock, tmp_path: Path
) -> None:
    holds = claim("order:42", "holds")
    store.enter(holds)
    store.enter(claim("order:42", "dies"), b"message")
    store.leave(holds, Outcome.OVER)
    while not store.dead_letter("order:42", "dies:0:0", Cause.UNREADABLE).verdict:
        clock.advance(60)
        store.reap("order:42")  # it is woken once more
    alerts(tmp_path, scraped(app), "DeadMessages")


def test_locks_that_are_lost_in_a_healthy_store_alert_once(app: Celery, tmp_path: Path) -> None:
    alerts(tmp_path, scraped(app) | counter("dlock_lost_total", 1), "LocksLost")


def test_a_lease_that_is_renewed_for_long_alerts_nobody(tmp_path: Path) -> None:
    alerts(tmp_path, histogram("dlock_hold_seconds", 1, le30=0) | TTL)


def test_the_rates_have_the_names_of_the_literature(tmp_path: Path) -> None:
    series = {
        **histogram("dlock_acquisition_seconds", 60, le1=0, le2=60),
        **histogram("dlock_hold_seconds", 60, le1=0, le2=60),
        **asked(refused=20, at_once=55, timed_out=15),
        **counter("dlock_stale_rejected_total", 6),
    }
    values = {
        "dlock_acquisition_seconds_p99": 1.99,
        "dlock_hold_seconds_p99": 1.99,
        "dlock_contention_ratio": 0.27,
        "dlock_timeout_ratio": 0.2,
        "dlock_stale_rejected_ratio": 0.1,
    }

    rounded = {f"round({name}, 0.01)": {f"{{{LABELS}}}": value} for name, value in values.items()}
    evaluate(tmp_path, series, rounded)


def test_the_rules_tell_tasks_apart_by_all_labels() -> None:
    of_events = {"job", *Labels._fields}
    grouped = re.findall(r"by \(([^)]*task[^)]*)\)", Path(RULES).read_text())
    assert {frozenset(names.split(", ")) - {"le"} for names in grouped} == {frozenset(of_events)}


def test_every_alert_is_tried() -> None:
    assert {rule["alert"] for rule in alerting()} == {alert for alert, _, _ in CASES}


def test_no_text_repeats_a_threshold_that_a_team_may_have_changed() -> None:
    texts = [text for rule in alerting() for text in rule["annotations"].values()]
    number = re.compile(r"[0-9](?![0-9]*th percentile)|half|quarter|minute|hour")
    assert [text for text in texts if number.search(text)] == []


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
