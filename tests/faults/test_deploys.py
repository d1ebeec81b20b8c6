"""A new version of the workers takes over while messages wait and more keep coming.

Nothing is lost, nothing is stuck, nothing happens twice, whatever the new version changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_dlock import LockContended
from tests.faults.conftest import MakeLab
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.load import (
    Body,
    all_have_ended,
    backlog,
    bodies,
    load,
    most_at_once,
    nothing_is_left,
    paid_once,
    state,
)
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

ORDERS = ("41", "42", "43")
QUEUE = {"policy": "queue", "ttl": 2.0}


@dataclass(frozen=True, slots=True)
class Deployed:
    """What was published before and during it, and the bodies that each version has run."""

    before: list[AsyncResult]
    during: list[AsyncResult]
    by_old: list[Body]
    by_new: list[Body]


def deploy(
    lab: Lab, old: Mapping[str, Any], new: Mapping[str, Any], orders: Sequence[str] = ORDERS
) -> Deployed:
    """Workers with the lock options *old* make room for some with *new*, under load."""
    running = old.get("limit", 1)
    with ExitStack() as workers:
        # Threads: a prefork worker that is stopped under load may take billiard's 30 s to go
        leaving = workers.enter_context(lab.worker("threads", 4, lock=old))
        before, old_pid = backlog(lab, orders, running, waiting=5), leaving.pid
        with load(lab, orders) as during:
            coming = workers.enter_context(lab.worker("threads", 4, lock=new))
            new_pid = coming.pid
            lab.go("first")
            lab.journal.wait_for("end", pid=new_pid)
            leaving.stop()
            count = len(during)
            until("work has come after it left", lambda: len(during) >= count + 10)
        all_have_ended([*before, *during])
        nothing_is_left(lab, orders)
        coming.stop()
    ran = bodies(lab)
    return Deployed(
        before,
        during,
        [body for body in ran if body.pid == old_pid],
        [body for body in ran if body.pid == new_pid],
    )


@pytest.mark.parametrize(
    ("old", "new", "otherwise"),
    [
        ("queue", "reschedule", None),
        ("queue", "skip", dict),
        ("queue", "fail", LockContended),
        ("reschedule", "queue", None),
    ],
)
def test_what_waits_runs_when_policy_and_ttl_have_changed(
    make_lab: MakeLab, effects: Effects, old: str, new: str, otherwise: type | None
) -> None:
    done = deploy(make_lab(), {"policy": old, "ttl": 2.0}, {"policy": new, "ttl": 6.0})

    # What waited has run, whatever the new version does with what it finds contended
    assert {result.state for result in done.before} == {"SUCCESS"}
    ran = [result for result in done.during if isinstance(result.result, int)]
    assert paid_once(effects, [*done.before, *ran])
    # And what came meanwhile has run, or has ended in the way of the new one
    assert {type(result.result) for result in done.during} <= {int, otherwise}
    assert most_at_once([*done.by_old, *done.by_new]) == 1


@pytest.mark.parametrize(("old", "new"), [(3, 1), (1, 3)])
def test_the_smaller_limit_counts_while_both_versions_run(
    make_lab: MakeLab, effects: Effects, old: int, new: int
) -> None:
    done = deploy(make_lab(), {**QUEUE, "limit": old}, {**QUEUE, "limit": new}, orders=("42",))

    assert paid_once(effects, [*done.before, *done.during])
    assert most_at_once(done.by_old) <= old
    assert most_at_once(done.by_new) <= new
    # And who is to be alone is alone, also with those of the other version
    alone, others = (done.by_new, done.by_old) if new == 1 else (done.by_old, done.by_new)
    for body in alone:
        assert not any(o.began < body.ended and body.began < o.ended for o in others)


def test_one_that_is_to_be_alone_holds_off_three_that_may_be_together(make_lab: MakeLab) -> None:
    # Given a worker of each version, each with a queue of its own
    lab = make_lab()
    pay = lab.app.tasks["pay"]
    of_new = {"task_default_queue": "new", **lab.config["celery"]}
    with (
        lab.worker("threads", 4, lock={**QUEUE, "limit": 3}),
        lab.worker("threads", 4, lock={**QUEUE, "limit": 1}, celery=of_new),
    ):
        # When one of the new version runs, and then three of the old one
        pay.apply_async(("42",), {"hold": "alone"}, queue="new")
        lab.journal.wait_for("start", 1)
        for _ in range(3):
            pay.apply_async(("42",), {"hold": "together"})
        # Then each waits for the other
        until("three wait", lambda: state(lab, "42").parked == 3)
        lab.go("alone")
        lab.journal.wait_for("start", 4)
        pay.apply_async(("42",), queue="new")
        until("one waits", lambda: state(lab, "42").parked == 1)
        lab.go("together")
        lab.journal.wait_for("end", 5)
        nothing_is_left(lab, ["42"])


def test_who_waits_for_a_key_that_is_no_more_runs_under_the_new_one(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab()

    done = deploy(lab, QUEUE, {**QUEUE, "key": "invoice:{order}"})

    assert paid_once(effects, [*done.before, *done.during])
    assert {row[1].partition(":")[0] for row in effects.payments()} == {"order", "invoice"}
    assert most_at_once(done.by_old) == most_at_once(done.by_new) == 1
    nothing_is_left(lab, ORDERS, "invoice:{}")
