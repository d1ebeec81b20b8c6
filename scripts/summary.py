"""Add up what the test environments reported: processor time by folder and by kind of test, a line
for each environment, and the total last.

Processor time is that of a test's process and of all that it has started (tests/services/spent.py).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

JUNIT = Path(__file__).resolve().parent.parent / ".tox" / "junit"


@dataclass(frozen=True, slots=True)
class Test:
    """A test of a report; *before* is what its process spent before its first test."""

    folder: str
    kind: str
    seconds: float
    processor: float
    before: float

    @classmethod
    def of(cls, case: ElementTree.Element) -> Test:
        properties = {p.get("name"): p.get("value", "") for p in case.iter("property")}
        return cls(
            "/".join(case.get("classname", "").split(".")[:2]),
            properties.get("kind", "not run"),
            float(case.get("time", 0)),
            float(properties.get("processor_seconds", 0)),
            float(properties.get("processor_seconds_before", 0)),
        )


def outcomes(report: ElementTree.Element) -> Counter[str]:
    counts: Counter[str] = Counter()
    for suite in report.iter("testsuite"):
        ran, failed, skipped = (
            int(suite.get("tests", 0)),
            int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
            int(suite.get("skipped", 0)),
        )
        counts.update(passed=ran - failed - skipped, failed=failed, skipped=skipped)
    return counts


def line(counts: Mapping[str, int]) -> str:
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


def table(title: str, tests: Iterable[tuple[str, Test]], before: float) -> Iterator[str]:
    """The rows with the most processor time come first."""
    rows: dict[str, list[Test]] = {}
    for name, test in tests:
        rows.setdefault(name, []).append(test)
    processor = {name: sum(test.processor for test in group) for name, group in rows.items()}
    total = sum(processor.values()) + before or 1.0
    yield f"{title:<30} {'tests':>7} {'processor s':>12} {'share':>6} {'wall s':>9}"
    for name in sorted(processor, key=lambda name: -processor[name]):
        seconds, wall = processor[name], sum(test.seconds for test in rows[name])
        count = len(rows[name])
        yield f"{name:<30} {count:>7,} {seconds:>12,.1f} {seconds / total:>6.1%} {wall:>9,.1f}"
    yield f"{'starting and collecting':<30} {'':>7} {before:>12,.1f} {before / total:>6.1%}"
    yield f"{'sum':<30} {sum(map(len, rows.values())):>7,} {total:>12,.1f}"


def main(folder: Path) -> None:
    total: Counter[str] = Counter()
    lines: list[str] = []
    tests: list[Test] = []
    for file in sorted(folder.glob("*.xml")):
        report = ElementTree.parse(file).getroot()
        tests += map(Test.of, report.iter("testcase"))
        total.update(counts := outcomes(report))
        lines.append(f"{file.stem:>14}: {line(counts)}")
    before = sum(test.before for test in tests)
    print(*table("folder", ((test.folder, test) for test in tests), before), "", sep="\n")
    print(*table("kind", ((test.kind, test) for test in tests), before), "", sep="\n")
    print(*lines, line(total), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else JUNIT)
