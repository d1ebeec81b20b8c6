"""Checks what the shop has left behind against what must hold; reads, and trusts nobody.

That an event was applied once is asked of the orders themselves, not only of the log of runs:
each counts its events and adds up its amounts.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from example_project.events.generate import OrderEvent
from example_project.events.orders import Run
from example_project.events.stage import Standing

OrderRow = tuple[int, str, int, int, int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is checked: the events, the orders database, the locks' journal, who was paused."""

    events: Sequence[OrderEvent]
    orders: Sequence[OrderRow]
    runs: Sequence[Run]
    journal: Sequence[dict[str, Any]]
    paused: Standing


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict; *wrong* lists what contradicts it."""

    claim: str
    detail: str
    wrong: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.wrong


def load(database: Path) -> tuple[list[OrderRow], list[Run]]:
    """The orders and the runs, in the order in which the runs were committed."""
    with closing(sqlite3.connect(database)) as db:
        rows = db.execute("SELECT order_id, state, latest, events, balance FROM orders")
        runs = db.execute("SELECT * FROM runs ORDER BY rowid")
        return list(rows), [_run(*row) for row in runs]


def _run(*row: Any) -> Run:
    event_id, order_id, token, worker, held, applied, started, ended = row
    return Run(event_id, order_id, token, worker, bool(held), bool(applied), started, ended)


def audit(evidence: Evidence) -> list[Finding]:
    """Every claim with what speaks against it."""
    return [
        _applied_once(evidence),
        _no_overlap(evidence),
        _tokens_grow(evidence),
        _late_write_refused(evidence),
        _in_order(evidence),
    ]


def _applied_once(evidence: Evidence) -> Finding:
    times = Counter(run.event_id for run in evidence.runs if run.applied)
    known = {event.event_id for event in evidence.events}
    wrong = [f"{e}: {times[e]} times" for e in sorted(known) if times[e] != 1]
    wrong += [f"{e} was never sent" for e in sorted(times.keys() - known)]
    wrong += _wrong_orders(evidence)
    dropped = sum(entry["event"] == "Dropped" for entry in evidence.journal)
    again = sum(not run.applied for run in evidence.runs)
    detail = f"{len(known & times.keys())} of {len(known)}"
    detail += f"; of the duplicates the lock dropped {dropped}, {again} found the event applied"
    return Finding("Every event was applied exactly once", detail, tuple(wrong))


def _wrong_orders(evidence: Evidence) -> Iterator[str]:
    by_order: dict[int, list[OrderEvent]] = defaultdict(list)
    for event in evidence.events:
        by_order[event.order_id].append(event)
    found = {row[0]: row for row in evidence.orders}
    for order_id, events in by_order.items():
        last = max(events, key=lambda e: e.sequence)
        balance = sum(e.amount for e in events)
        expected = (order_id, last.kind, last.sequence, len(events), balance)
        if found.get(order_id) != expected:
            yield f"order {order_id} is {found.get(order_id)}, not {expected}"


def _by_order(evidence: Evidence) -> dict[int, list[Run]]:
    by_order: dict[int, list[Run]] = defaultdict(list)
    for run in evidence.runs:
        by_order[run.order_id].append(run)
    return by_order


def _no_overlap(evidence: Evidence) -> Finding:
    wrong = []
    for order_id, runs in _by_order(evidence).items():
        held = sorted((run for run in runs if run.held), key=lambda run: run.started)
        wrong += [
            f"order {order_id}: {earlier.event_id} and {later.event_id}"
            for earlier, later in pairwise(held)
            if later.started < earlier.ended
        ]
    lapsed = sum(not run.held for run in evidence.runs)
    detail = f"{len(evidence.runs)} runs on {len(_by_order(evidence))} orders"
    detail += f"; {lapsed} had lost the lock by the end, which is for the fence" if lapsed else ""
    return Finding("No two tasks of one order overlapped", detail, tuple(wrong))


def _tokens_grow(evidence: Evidence) -> Finding:
    wrong = [
        f"order {order_id}: {later.token} after {earlier.token}"
        for order_id, runs in _by_order(evidence).items()
        for earlier, later in pairwise(runs)
        if later.token <= earlier.token
    ]
    detail = f"{len({run.token for run in evidence.runs})} tokens"
    return Finding("Fencing tokens grew strictly per order", detail, tuple(wrong))


def _late_write_refused(evidence: Evidence) -> Finding:
    refused = [e for e in evidence.journal if e["event"] == "StaleRejected"]
    paused = evidence.paused
    its_own = [
        e
        for e in refused
        if (e["pid"], e["subject"]["task_id"], e["mine"])
        == (paused.pid, paused.event_id, paused.token)
    ]
    wrong = []
    if not its_own:
        wrong.append(f"no refusal of token {paused.token} for {paused.event_id}")
    if any(run.token == paused.token for run in evidence.runs):
        wrong.append(f"the write with token {paused.token} went through")
    detail = f"{len(refused)} refused, {len(its_own)} of them of the run that stood still"
    return Finding("The paused worker's late write was refused", detail, tuple(wrong))


def _in_order(evidence: Evidence) -> Finding:
    sequence = {event.event_id: event.sequence for event in evidence.events}
    wrong = []
    for order_id, runs in _by_order(evidence).items():
        applied = dict.fromkeys(r.event_id for r in runs if r.applied and r.event_id in sequence)
        wrong += [
            f"order {order_id}: {later} after {earlier}"
            for earlier, later in pairwise(applied)
            if sequence[later] < sequence[earlier]
        ]
    waited, again = _calls(evidence)
    if not waited:
        wrong.append("nothing waited its turn, although some orders are hot")
    detail = f"through the kill and the pause; {waited} waited their turn"
    detail += f", {again} were called more than once"
    return Finding("The events of every order were applied in their order", detail, tuple(wrong))


def _calls(evidence: Evidence) -> tuple[int, int]:
    """How many were not called by their publisher at once, and how many more than once."""
    parked, woken = (
        [(e["subject"]["task_id"], e["pid"]) for e in evidence.journal if e["event"] == kind]
        for kind in ("Parked", "Woken")
    )
    waited = {task_id for task_id, _ in set(woken) - set(parked)}
    calls = Counter(task_id for task_id, _ in woken)
    return len(waited), sum(times > 1 for times in calls.values())
