"""How many tests of the contract each store passed, and what caught the broken ones."""

from __future__ import annotations

from collections import Counter

import pytest

_counts: Counter[tuple[str, str]] = Counter()
_caught: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file, _, rest = report.nodeid.partition("::")
    if "tests/contract/test_" in file and rest.startswith("Test"):
        store = rest.partition("::")[0].removeprefix("Test")
        if report.when == "call" or not report.passed:
            _counts[store, report.outcome] += 1
    _caught.extend(str(v) for name, v in report.user_properties if name == "broken store")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _counts and not _caught:
        return
    terminalreporter.section("contract of the stores")
    for (store, outcome), number in sorted(_counts.items()):
        terminalreporter.line(f"{store}: {number} {outcome}")
    if _caught:
        terminalreporter.line("broken stores, the number of tests that notice, and one of them:")
        for line in sorted(set(_caught)):
            terminalreporter.line(f"  {line}")
