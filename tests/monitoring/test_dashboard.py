"""The dashboard's queries, asked of a real Prometheus that has scraped a real run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring import shop_run
from tests.monitoring.test_rules import RULES
from tests.services.prometheus import PrometheusServer
from tests.services.require import require
from tests.services.until import until
from tests.workers.conftest import MakeLab

pytestmark = pytest.mark.once

DASHBOARD = json.loads((files("celery_dlock.monitoring") / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]

#: What Grafana puts in place of its own.
BUILT_IN = {"$__rate_interval": "1m"}


def rendered(query: str) -> str:
    """*query* with all variables replaced as Grafana does it where nothing is chosen."""
    for variable in VARIABLES:
        query = query.replace(f"${variable['name']}", variable["allValue"])
    for name, value in BUILT_IN.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


def queries() -> list[str]:
    return [rendered(target["expr"]) for panel in PANELS for target in panel["targets"]]


@pytest.fixture
def prometheus(
    make_lab: MakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PrometheusServer]:
    """It has scraped while everything happened."""
    require("prometheus")
    where = tmp_path / "metrics"
    where.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(where))
    lab = make_lab(celery=shop_run.CELERY, **shop_run.OPTIONS)
    with shop_run.running(lab) as target, PrometheusServer(target, RULES) as server:
        shop_run.begin(lab)
        for counter in (
            "dlock_timed_out_total{task='apply'}",
            "dlock_stale_rejected_total{task='pay'}",
        ):
            until(f"a zero to count from: {counter}", partial(server.query, f"{counter} == 0"))
        shop_run.make_everything_happen(lab)
        yield server


@pytest.mark.server("prometheus")
@pytest.mark.slow
def test_every_panel_shows_something(prometheus: PrometheusServer) -> None:
    for query in queries():
        until(f"data for {query}", partial(prometheus.query, query))
    for variable in VARIABLES:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked
        series, label = asked.groups()
        assert any(label in found["metric"] for found in prometheus.query(rendered(series)))

    def firing() -> set[str]:
        found = prometheus.query('ALERTS{alertname=~"StaleWriteRejected|DeadMessages"}')
        return {sample["metric"]["alertname"] for sample in found}

    until("the alerts fire", lambda: firing() == {"StaleWriteRejected", "DeadMessages"})
    until("somebody waits", lambda: prometheus.query("dlock_waiting_tasks > 0"))
    for rate in ("dlock_contention_ratio", "dlock_timeout_ratio", "dlock_stale_rejected_ratio"):
        until(f"{rate} of it", partial(prometheus.query, f"{rate} > 0"))


def test_its_panels_have_each_a_place_and_a_number() -> None:
    panels = DASHBOARD["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [pair for pair in combinations(panels, 2) if _overlap(*pair)] == []
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return bool(
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


def test_it_has_the_danger_lines() -> None:
    lines = {
        panel["title"]: panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        for panel in PANELS
    }

    assert lines["dlock_contention_ratio"] == 0.3
    assert lines["dlock_timeout_ratio"] == 0.05
    assert 0 < lines["dlock_stale_rejected_ratio"] < 0.001
    assert lines["dlock_acquisition_seconds, p99 of the TTL"] == 0.5
    assert lines["dlock_hold_seconds, p99 of the TTL"] is None
