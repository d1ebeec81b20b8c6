"""The audit believes a clean record, and fails on every doctored one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from example_project.events.audit import Evidence, Finding, audit
from example_project.events.generate import OrderEvent
from example_project.events.orders import Run
from example_project.events.stage import Standing

ONCE, OVERLAP, TOKENS, REFUSED, ORDER = range(5)

PAUSED = Standing("8-001", pid=70, group=7, token=20)


def noted(event: str, task_id: str, pid: int = 71, **more: Any) -> dict[str, Any]:
    return {"event": event, "pid": pid, "subject": {"task_id": task_id}, **more}


def run(event_id: str, token: int, started: float, **more: Any) -> Run:
    order_id = int(event_id.partition("-")[0])
    return replace(
        Run(event_id, order_id, token, 70, True, True, started, ended=started + 1), **more
    )


def clean() -> Evidence:
    """Two orders; the first run of 8-001 was paused with token 20 and refused."""
    return Evidence(
        events=[
            OrderEvent("7-001", 7, 1, "created", 0),
            OrderEvent("7-002", 7, 2, "paid", 500),
            OrderEvent("8-001", 8, 1, "created", 0),
        ],
        orders=[(7, "paid", 2, 2, 500), (8, "created", 1, 1, 0)],
        runs=[
            run("7-001", 11, 1.0),
            run("8-001", 21, 1.5),
            run("7-002", 12, 2.0),
            run("7-001", 13, 3.5, applied=False),
        ],
        journal=[
            noted("Woken", "7-002", pid=71),
            noted("StaleRejected", "8-001", pid=70, mine=20),
            noted("Dropped", "8-001"),
            *(noted("Parked", event, pid=60) for event in ("7-001", "7-002", "8-001")),
            *(noted("Woken", event, pid=60) for event in ("7-001", "8-001")),
            noted("Woken", "8-001", pid=71),
        ],
        paused=PAUSED,
    )


def test_a_clean_record_holds() -> None:
    findings = audit(clean())
    assert [finding.wrong for finding in findings] == [()] * 5
    assert findings[ONCE].detail.startswith("3 of 3; of the duplicates the lock dropped 1, 1 found")
    assert "2 waited their turn, 1 were called more than once" in findings[ORDER].detail


def doctored(**changes: Callable[[list[Any]], Any]) -> list[Finding]:
    evidence = clean()
    for name, change in changes.items():
        change(getattr(evidence, name))
    return audit(evidence)


def put(index: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda entries: entries.__setitem__(index, value)


def drop(index: int) -> Callable[[list[Any]], Any]:
    return lambda entries: entries.pop(index)


def add(value: Any) -> Callable[[list[Any]], None]:
    return lambda entries: entries.append(value)


def swap(*places: tuple[str, int]) -> Callable[[list[Any]], None]:
    """The events of two runs, in each other's place."""

    def change(runs: list[Any]) -> None:
        (one, first), (other, second) = places
        runs[first] = replace(runs[first], event_id=other)
        runs[second] = replace(runs[second], event_id=one)

    return change


def of_publisher_only(journal: list[Any]) -> None:
    journal[:] = [e for e in journal if (e["event"], e["pid"]) != ("Woken", 71)]


CLEAN = clean()

FORGERIES: dict[str, tuple[int, dict[str, Callable[[list[Any]], Any]]]] = {
    "an event was never applied": (ONCE, {"runs": drop(1)}),
    "an event was applied twice": (ONCE, {"runs": put(3, run("7-001", 13, 3.5))}),
    "a run says it applied nothing": (
        ONCE,
        {"runs": put(2, replace(CLEAN.runs[2], applied=False))},
    ),
    "an event that nobody sent": (ONCE, {"runs": add(run("9-001", 30, 9.0))}),
    "an order counts an event too many": (ONCE, {"orders": put(0, (7, "paid", 2, 3, 500))}),
    "an order was paid twice": (ONCE, {"orders": put(0, (7, "paid", 2, 2, 1000))}),
    "an order went back to an earlier state": (ONCE, {"orders": put(0, (7, "created", 1, 2, 500))}),
    "an order is missing": (ONCE, {"orders": drop(1)}),
    "two runs of an order overlap": (
        OVERLAP,
        {"runs": put(2, run("7-002", 12, 1.9))},
    ),
    "a run within another": (
        OVERLAP,
        {"runs": put(2, run("7-002", 12, 1.2, ended=1.3))},
    ),
    "a duplicate that applied nothing overlaps": (
        OVERLAP,
        {"runs": put(3, run("7-001", 13, 2.5, applied=False))},
    ),
    "a token went back": (TOKENS, {"runs": put(2, run("7-002", 10, 2.0))}),
    "a token was given twice": (TOKENS, {"runs": put(2, run("7-002", 11, 2.0))}),
    "nobody was refused": (REFUSED, {"journal": drop(1)}),
    "another process was refused": (
        REFUSED,
        {"journal": put(1, noted("StaleRejected", "8-001", pid=71, mine=20))},
    ),
    "another event was refused": (
        REFUSED,
        {"journal": put(1, noted("StaleRejected", "7-001", pid=70, mine=20))},
    ),
    "another token was refused": (
        REFUSED,
        {"journal": put(1, noted("StaleRejected", "8-001", pid=70, mine=19))},
    ),
    "the late write went through": (REFUSED, {"runs": put(1, run("8-001", 20, 1.5))}),
    "an event was applied before an earlier one": (
        ORDER,
        {"runs": swap(("7-001", 0), ("7-002", 2))},
    ),
    "nothing waited": (ORDER, {"journal": of_publisher_only}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_doctored_record_is_found_out(forgery: str) -> None:
    what, changes = FORGERIES[forgery]
    findings = doctored(**changes)
    assert not findings[what].holds
    assert [n for n, finding in enumerate(findings) if not finding.holds] == [what]


def test_a_run_whose_lock_had_expired_may_overlap_with_its_successor() -> None:
    findings = doctored(runs=put(0, run("7-001", 11, 1.0, held=False, ended=2.5)))
    assert findings[OVERLAP].holds
    assert "1 had lost the lock" in findings[OVERLAP].detail
