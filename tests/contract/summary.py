"""How many tests of the contract each store passed."""

from __future__ import annotations

from collections import Counter

import pytest

_counts: Counter[tuple[str, str]] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file, _, rest = report.nodeid.partition("::")
    if "tests/contract/test_" in file and rest.startswith("Test"):
        store = rest.partition("::")[0].removeprefix("Test")
        if report.when == "call" or not report.passed:
            _counts[store, report.outcome] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _counts:
        return
    terminalreporter.section("contract of the stores")
    for (store, outcome), number in sorted(_counts.items()):
        terminalreporter.line(f"{store}: {number} {outcome}")
