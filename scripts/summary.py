"""Add up what the test environments reported: one line each, and the total last."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

JUNIT = Path(__file__).resolve().parent.parent / ".tox" / "junit"


def counts(report: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for suite in ElementTree.parse(report).iter("testsuite"):
        ran, failed, skipped = (
            int(suite.get("tests", 0)),
            int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
            int(suite.get("skipped", 0)),
        )
        found.update(passed=ran - failed - skipped, failed=failed, skipped=skipped)
    return found


def line(found: Counter[str]) -> str:
    return f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped"


total: Counter[str] = Counter()
for report in sorted(JUNIT.glob("*.xml")):
    found = counts(report)
    total.update(found)
    print(f"{report.stem:>14}: {line(found)}")
print(line(total))
