"""``Replace()`` with three workers: no older call ends after a newer one, and the newest runs last.

Calls are made one after another by two publishers, so their order is known. The bodies' journal is
the judge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle

import pytest
from celery.result import AsyncResult

from tests.faults.conftest import MakeLab
from tests.services.brokers import close
from tests.services.lab import Lab, make_app
from tests.services.turns import done, freed
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow, pytest.mark.once]

CALLS = 5

#: What happens to the first call of each burst.
BURSTS = ["it runs", "it is in its body", "it is tried again"] * 3 + ["its worker is killed"] * 3

#: Seconds, in which all of a burst is called: the retry makes room.
LATER = 20.0

#: ``call(burst, number, **how)``; *how* is what the body is told.
Call = Callable[..., AsyncResult]


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(lock={"policy": "replace"}, sweeps_every=0.5)


@pytest.fixture
def call(lab: Lab) -> Iterator[Call]:
    other = make_app(lab.config)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        publishers = cycle([(one, lab.app), (two, other)])

        def call(burst: int, number: int, **how: object) -> AsyncResult:
            thread, app = next(publishers)
            apply = app.tasks["apply"]
            sent = thread.submit(apply.delay, str(burst), number, **how).result()
            return lab.app.AsyncResult(sent.id)

        yield call
    close(other)


def burst_of(lab: Lab, call: Call, burst: int, what: str) -> list[AsyncResult]:
    """Its first call and its last one, with three between them."""
    later = range(2, CALLS + 1)
    if what == "it is tried again":
        first = call(burst, 1, again=LATER)
        until("its retry waits", lambda: first.state == "RETRY")
        call(burst, 2, hold=f"{burst} is called")
        lab.journal.wait_for("start", order=str(burst), number=2)
        later = range(3, CALLS + 1)
    elif what == "it runs":
        first = call(burst, 1)
    else:
        first = call(burst, 1, hold="it was killed" if "killed" in what else f"{burst} is called")
        lab.journal.wait_for("start", order=str(burst), number=1)
    *_, newest = [call(burst, number) for number in later]
    lab.go(f"{burst} is called")
    return [first, newest]


def all_end(lab: Lab, bursts: Mapping[int, list[AsyncResult]]) -> None:
    for burst, (first, newest) in bursts.items():
        assert done([newest]) == [CALLS]
        assert done([first]) == [1] or first.result["skipped"]
        freed(lab, str(burst))


def test_the_newest_call_of_each_burst_runs_last(lab: Lab, call: Call) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(lab.worker(concurrency=2)) for _ in range(3)]
        sent = {burst: burst_of(lab, call, burst, what) for burst, what in enumerate(BURSTS)}
        all_end(lab, {burst: sent.pop(burst) for burst in range(9)})
        (held,) = lab.journal.read("start", order="9")
        next(each for each in workers if each.pid == os.getpgid(held["pid"])).kill()
        lab.go("it was killed")
        all_end(lab, sent)

    raced, run, retried, killed = (
        [[entry["number"] for entry in lab.journal.read("end", order=str(n))] for n in numbers]
        for numbers in ((0, 3, 6), (1, 4, 7), (2, 5, 8), (9, 10, 11))
    )
    assert [ran for ran in raced if ran != sorted(set(ran)) or ran[-1] != CALLS] == []
    assert run == killed == [[1, CALLS]] * 3
    assert retried == [[1, 2, CALLS]] * 3
    assert len(lab.journal.read("start", order="9", number=1)) == 2
