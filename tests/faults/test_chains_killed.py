"""``reserve="chain"``: a worker is killed around each place where a step is handed on.

Strangers of the same key come before, meanwhile and after; nobody of them runs in between.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from celery import chain
from celery.result import AsyncResult

from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab
from tests.services import faults
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again, not_finished
from tests.services.turns import parked
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

PUT = "celery_dlock.publishing.outbox:Outbox._ask"
RELEASE = "celery_dlock.locks.manager:LockManager.release"
POINTS = [
    pytest.param("before", PUT, id="before it is put into the store"),
    pytest.param("after", PUT, id="after it is put into the store"),
    pytest.param("before", RELEASE, id="before the release"),
    pytest.param("after", RELEASE, id="after the release"),
]

STEPS = [1, 2, 3]


def between(started: list[int]) -> list[int]:
    """Who began between two steps: after the last begin of the one, as the next one followed."""
    strangers: list[int] = []
    for step, following in pairwise(STEPS):
        before = started[: started.index(following)]
        last = max(n for n, number in enumerate(before) if number == step)
        strangers += [number for number in before[last:] if number not in STEPS]
    return strangers


def is_over(lab: Lab) -> bool:
    """Whether nobody has the key, waits for it, or is expected."""
    state = runtime(lab.app).backend.peek("order:42")
    return not (state.holders or state.grants or state.waiting)


def met_the_key(lab: Lab, strangers: list[AsyncResult]) -> None:
    """Wait until the worker has had *strangers*: Redis loses what it hands to one that dies."""
    policy = lab.config["lock"]["policy"]
    if policy == "queue":
        parked(lab, "42", len(strangers))
    elif policy == "in three seconds":
        in_its_hands = (0, 1 + len(strangers))
        until(
            "they are put off",
            lambda: (
                not_finished(lab.app) == in_its_hands
                and all(each.state == "RETRY" for each in strangers)
            ),
        )
    else:
        until("they are refused", lambda: all(each.ready() for each in strangers))


def killed_and_gone_on(lab: Lab) -> list[int]:
    """Who began, in order, where the worker of the first step dies by the fault of *lab*."""
    apply = lab.app.tasks["apply"]
    first, *rest = STEPS
    steps = chain(apply.si("42", first, hold="first"), *(apply.si("42", n) for n in rest))
    with lab.worker("prefork", concurrency=2) as worker:
        steps.apply_async()
        lab.journal.wait_for("start", number=first)
        strangers = [apply.delay("42", number) for number in (10, 11)]
        met_the_key(lab, strangers)
        lab.go("first")
        until("the fault strikes", lambda: faults.struck(lab.folder))
        worker.ended()
        deliver_again(lab.app)
        strangers += [apply.delay("42", number) for number in (12, 13)]
        worker.start()
        until("the strangers have ended", lambda: all(each.ready() for each in strangers))
        until("all is done", lambda: not_finished(lab.app) == (0, 0) and is_over(lab))
    return [entry["number"] for entry in lab.journal.read("start")]


@pytest.mark.parametrize("policy", ["queue", "skip", "fail", "in three seconds"])
@pytest.mark.parametrize(("when", "where"), POINTS)
def test_nobody_comes_between_whoever_is_killed(
    make_lab: MakeLab, policy: str, when: str, where: str
) -> None:
    options = {"policy": policy, "reserve": "chain"}
    lab = make_lab(lock=options, faults=[faults.kill(when, where)])

    started = killed_and_gone_on(lab)

    # The first step is delivered again; if it was not to go on, a stranger may refuse it.
    if (when, where) != ("before", PUT) or policy in ("queue", "in three seconds"):
        assert between(started) == []


# Behind the release another slot of that worker may have acknowledged the step that was woken.
@pytest.mark.parametrize(("when", "where"), POINTS[:-1])
def test_with_early_acknowledgement_it_goes_on_once_it_is_in_the_store(
    make_lab: MakeLab, when: str, where: str
) -> None:
    lab = make_lab(
        lock={"policy": "queue", "reserve": "chain"},
        task={"acks_late": False},
        faults=[faults.kill(when, where)],
    )

    started = killed_and_gone_on(lab)

    is_put = (when, where) != ("before", PUT)
    assert [number for number in started if number in STEPS] == (STEPS if is_put else STEPS[:1])
    assert not is_put or between(started) == []
    assert {10, 11, 12, 13} <= set(started)
