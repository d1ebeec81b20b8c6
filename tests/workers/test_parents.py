"""Whoever takes a parent waits for all that is below it, and holds it off: over every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.services.brokers import close
from tests.services.lab import Lab
from tests.services.stores import EVERY, STORES, Store
from tests.services.turns import done
from tests.services.until import until
from tests.workers.conftest import on_store

pytestmark = pytest.mark.once

SQLITE = next(store for store in STORES if store.scheme == "sqlite")


#: ``make(store, parent, policy)``
Make = Callable[..., Lab]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    labs: list[Lab] = []

    def make(store: Store, parent: str, policy: str = "queue") -> Lab:
        own = {"task_track_started": True, "dlock_ttl": 600.0}  # only who leaves frees a key
        lock = {"parents": [parent]}
        labs.append(on_store(request, tmp_path, store, policy, celery=own, lock=lock))
        return labs[-1]

    yield make
    for lab in labs:
        close(lab.app)


def wait(lab: Lab, *results: Any) -> None:
    """Until each of *results* waits for its turn."""
    for result in results:
        until(f"it waits: {lab.journal.read()}", lambda: result.state in ("PARKED", "RETRY"))  # noqa: B023
    lab.app.tasks["plain"].delay("nothing").get(timeout=30)  # what is told comes before it is done


@pytest.mark.parametrize("store", EVERY)
def test_over_every_store_the_parent_waits_for_all_children_and_holds_new_ones_off(
    make: Make, store: Store
) -> None:
    parent_and_children(make(store, "all"), "all")


def parent_and_children(lab: Lab, parent: str) -> None:
    apply, audit = lab.app.tasks["apply"], lab.app.tasks["audit"]
    with lab.worker("threads", concurrency=4) as worker:
        # Given two children that run at the same time, And one that wants their parent
        children = [apply.delay(order, 1, hold="children") for order in ("41", "42")]
        lab.journal.wait_for("start", count=2)
        audits = audit.delay(parent, hold="audit")
        wait(lab, audits)
        # When a child comes after it, Then it waits although readers have the parent
        late = apply.delay("43", 2)
        wait(lab, late)
        # And the parent comes when all children are through
        lab.go("children")
        lab.journal.wait_for("audit starts")
        assert len(lab.journal.read("end")) == 2
        assert lab.journal.read("start", order="43") == []
        lab.go("audit")
        assert done([*children, late]) == [1, 1, 2]
        entries = [entry["what"] for entry in lab.journal.read()]
        assert entries[-4:] == ["audit starts", "audit ends", "start", "end"]
        assert min(entry["token"] for entry in lab.journal.read("start")) > 0
        worker.stop()


def test_a_worker_that_is_killed_runs_its_child_again_and_then_the_parent(make: Make) -> None:
    parent = "orders"  # which sorts behind the key of an order
    lab = make(SQLITE, parent, "queue and keep")
    ends = {**lab.config["celery"], "dlock_ttl": 2.0}
    with lab.worker("prefork", concurrency=2, celery=ends) as worker:
        killed = lab.app.tasks["apply"].delay("42", 1, hold="child")
        lab.journal.wait_for("start")
        audits = lab.app.tasks["audit"].delay(parent)
        wait(lab, audits)
        worker.kill()
        lab.go("child")
    with lab.worker("prefork", concurrency=2, celery=ends):
        assert done([killed, audits]) == [1, None]
        assert len(lab.journal.read("start", order="42")) == 2
        backend = runtime(lab.app).backend
        for key in (parent, "order:42"):
            until(f"{key} is as new", lambda: backend.peek(key) == KeyState())  # noqa: B023
