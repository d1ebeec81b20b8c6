"""Each row of the table in ``deploy.rst``: tasks wait, and an old and a new worker run at once.

Nothing is lost, stuck or run twice, and no more run at once than either version lets in. When the
old one has gone, what it has left waiting is held as the new one says.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack

import pytest

from celery_dlock import lock
from tests.faults.conftest import MakeLab
from tests.services.deployed import LATE, MIDDLE
from tests.services.lab import Lab
from tests.services.load import all_have_ended, bodies, most_at_once, nothing_is_left, state
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow, pytest.mark.once]

#: How many may run at once, where that is more than one.
TOGETHER = {"three": 3, "by function": 3, "shared": 24}

ROWS = [
    *(("alone", "three"), ("three", "alone"), ("alone", "by function"), ("three", "by function")),
    *(("alone", "shared"), ("shared", "alone"), ("alone", "reschedule"), ("reschedule", "alone")),
    *(("alone", "ordered"), ("ordered", "alone"), ("alone", "keep"), ("keep", "alone")),
    *(("alone", "another key"), ("alone", "another name"), ("many options", "alone")),
]


@pytest.mark.parametrize(("old", "new"), ROWS)
def test_what_waits_outlives_a_deploy(make_lab: MakeLab, old: str, new: str) -> None:
    lab = make_lab()
    with ExitStack() as workers:
        with lock("order:42", app=lab.app, timeout=0):
            leaving = workers.enter_context(_worker(lab, old))
            sent = [lab.app.send_task("work", ("42", n)) for n in range(LATE + 6)]
            until("they wait", lambda: len(state(lab, "42").waiting) == len(sent))
            coming = workers.enter_context(_worker(lab, new, holds=True))
        until("half way", lambda: any(e["id"] >= MIDDLE for e in lab.journal.read("start")))
        leaving.send(signal.SIGTERM)
        until("it takes no more", lambda: "Warm shutdown" in leaving.log)
        lab.go("middle")
        leaving.ended()
        name = "work anew" if new == "another name" else "work"
        sent += [lab.app.send_task(name, ("42", n)) for n in range(len(sent), len(sent) + 4)]
        together = min(4, TOGETHER.get(new, 1))
        until(f"{together} run at once", lambda: _running(lab, coming) >= together)
        lab.go("late")
        all_have_ended(sent)
        nothing_is_left(lab, ["42"])

    assert [result.result for result in sent] == list(range(len(sent)))
    ran = Counter(entry["id"] for entry in lab.journal.read("start"))
    assert ran == Counter(range(len(sent)))
    assert most_at_once(bodies(lab)) <= max(TOGETHER.get(old, 1), TOGETHER.get(new, 1))


def _worker(lab: Lab, version: str, *, holds: bool = False) -> Worker:
    config = {**lab.config, "version": version, "holds": holds}
    name = "new" if holds else "old"
    return Worker(lab.folder, config, name, "threads", 8, "tests.services.deployed:app")


def _running(lab: Lab, worker: Worker) -> int:
    starts, ends = (lab.journal.read(what, pid=worker.pid) for what in ("start", "end"))
    return len(starts) - len(ends)
