"""Every canvas × every policy × everything that can become of a member, on real workers.

All of them are played at the same time. Each has to end as the table of
:mod:`tests.services.canvases` says, with every task of it run as often as it should be. What a body
does comes in turn, so that it meets each policy and each canvas, if not each of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pprint import pformat
from typing import Any

import pytest
from celery.result import allow_join_result, assert_will_not_block

from tests.services.brokers import close, over_quorum_queues
from tests.services.canvases import CANVASES, End
from tests.services.lab import Lab
from tests.services.play import Case, Met, Play, everything_in, play, value_of
from tests.services.redis import RedisServer
from tests.workers.conftest import embedded

pytestmark = [
    pytest.mark.slow,
    # Celery 5.5 with a newer redis-py
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
    # The error callback of a chord is its body's
    pytest.mark.filterwarnings("ignore:task_allow_error_cb:PendingDeprecationWarning"),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a member ends, how often its body runs, and the error it fails with."""

    end: End
    runs: int
    error: str = ""


#: What a body does, once it has its lock.
BODIES = {
    "returns": Outcome(End.RUNS, 1),
    "fails": Outcome(End.FAILS, 1, "ValueError"),
    "retries": Outcome(End.RUNS, 2),
    "autoretries": Outcome(End.RUNS, 2),
}

#: Who finds the key free, or gets it in the end.
RUNNING = [
    *((policy, Met.FREE) for policy in ("no lock", "skip", "skip and continue", "fail")),
    *(
        (policy, met)
        for policy in ("reschedule", "queue", "replace", "wait")
        for met in (Met.FREE, Met.TAKEN)
    ),
]

TIMED_OUT = Outcome(End.FAILS, 0, "LockTimeout")
CONTENDED = Outcome(End.FAILS, 0, "LockContended")
SKIPPED = Outcome(End.SKIPPED, 0)

#: Who does not get it.
REFUSED = {
    ("reschedule briefly", Met.HELD): TIMED_OUT,
    ("queue briefly", Met.HELD): TIMED_OUT,
    ("replace briefly", Met.HELD): TIMED_OUT,
    ("wait briefly", Met.HELD): TIMED_OUT,
    ("skip", Met.HELD): SKIPPED,
    ("skip and continue", Met.HELD): Outcome(End.SKIPPED_GO_ON, 0),
    ("fail", Met.HELD): CONTENDED,
    ("queue of one", Met.FULL): CONTENDED,
    ("queue of one, newest dropped", Met.FULL): SKIPPED,
    ("queue of one, oldest dropped", Met.OUTRUN): SKIPPED,
    ("replace", Met.OUTRUN): SKIPPED,
}

MEMBERS = {
    **{(*who, body): outcome for who in RUNNING for body, outcome in BODIES.items()},
    **{(*who, "returns"): outcome for who, outcome in REFUSED.items()},
}

CASES = {
    Case(canvas, *member): outcome
    for canvas in CANVASES
    for member, outcome in MEMBERS.items()
    if outcome.end in CANVASES[canvas].comes_to
}


def in_turn() -> list[Case]:
    """Of the cases that differ in the body alone, one; another one from canvas to canvas."""
    policies = list(dict.fromkeys((case.policy, case.met) for case in CASES))
    chosen = []
    for turn, (canvas, who) in enumerate(product(CANVASES, policies)):
        alike = [c for c in CASES if c.canvas == canvas and (c.policy, c.met) == who]
        chosen += alike and [alike[turn % len(alike)]]
    return chosen


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a case: the value, who ran how often, where it hangs, what else is pending."""

    value: str
    ran: Mapping[str, int]
    hangs: str | None = None
    pending: int = 0
    why: list[str] = field(default_factory=list[str], compare=False)  # for who reads a failure


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("redis", marks=pytest.mark.server("redis")),
        pytest.param("quorum", marks=[pytest.mark.server("redis"), pytest.mark.server("rabbitmq")]),
        "files and SQLite",
    ],
)
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Case, Seen]]:
    """The cases, played on two workers that have stopped by now."""
    folder = tmp_path_factory.mktemp("matrix")
    in_redis = request.param in ("redis", "quorum")
    config = on_redis(request.getfixturevalue("redis_server")) if in_redis else embedded(folder)
    if request.param == "quorum":
        config |= over_quorum_queues(request.getfixturevalue("rabbitmq_server").url)
    config |= {"worker_prefetch_multiplier": 1, "result_chord_retry_interval": 0.2}
    lab = Lab(folder, {"celery": config})
    with lab.worker("prefork", 2) as processes, lab.worker("threads", 16) as threads:
        played = play(lab, in_turn(), 60, at_once=60)
        for worker in (processes, threads):  # whatever runs twice has done so when they are gone
            worker.stop()
    found = seen_of(lab, played)
    yield found
    close(lab.app)


def on_redis(server: RedisServer) -> dict[str, Any]:
    url = server.url.removesuffix("/0")
    return {
        "broker_url": f"{url}/7",
        "result_backend": f"{url}/8",
        "dlock_url": f"{url}/0",
        "dlock_key_prefix": "matrix",
    }


def seen_of(lab: Lab, played: Mapping[Case, Play]) -> dict[Case, Seen]:
    ran: dict[str, Counter[str]] = {one.id: Counter() for one in played.values()}
    for entry in lab.journal.read("ran"):
        ran[entry["case"]][entry["label"]] += 1
    return {
        case: Seen(
            *(value_of(one.result), ran[one.id], one.hangs, pending(case, one)),
            why=[str(each.result) for each in everything_in(one.result) if each.failed()],
        )
        for case, one in played.items()
    }


def pending(case: Case, one: Play) -> int:
    if CASES[case].end is End.FAILS:
        return 0  # Celery leaves some of what stands behind a failure pending
    return sum(not result.ready() for result in everything_in(one.result))


def expected(case: Case, outcome: Outcome) -> Seen:
    value, others = CANVASES[case.canvas].comes_to[outcome.end]
    ran = Counter(others.split())
    ran["member"] = outcome.runs
    if case.met is Met.FULL:
        ran["earlier"] = 1
    if case.met is Met.OUTRUN:
        ran["later"] = 1
    return Seen(value.replace("error", outcome.error), +ran)


@pytest.mark.parametrize("canvas", CANVASES)
def test_it_ends_as_it_should_whatever_becomes_of_its_member(
    seen: Mapping[Case, Seen], canvas: str
) -> None:
    should = {case: expected(case, CASES[case]) for case in seen if case.canvas == canvas}

    wrong = {str(case): (seen[case], end) for case, end in should.items() if seen[case] != end}

    assert not wrong, pformat(wrong)


def test_celery_takes_the_permission_from_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/how-to/canvas.rst says of chords in a pool of threads, and the lab prevents."""
    monkeypatch.setattr("celery._state._task_join_will_block", True)  # as a worker starts
    one = allow_join_result()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(one.__enter__).result()
        with allow_join_result():
            thread.submit(one.__exit__, None, None, None).result()

            with pytest.raises(RuntimeError, match=r"Never call result\.get"):
                assert_will_not_block()
