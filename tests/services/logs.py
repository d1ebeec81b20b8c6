"""The end of what its processes have logged stands in the report of a test that failed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

#: Lines of each log.
LAST = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """For where nobody can look at the files any more."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(folder, Path):
        for log in sorted(folder.rglob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            report.sections.append((f"{log.relative_to(folder)}", "\n".join(lines[-LAST:])))
    return report
