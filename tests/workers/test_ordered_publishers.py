"""Order as published, by several processes over two queues of the broker to several workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack

import pytest

from celery_dlock.runtime import runtime
from tests.services.lab import Lab
from tests.services.publisher import Tasks, publishing
from tests.workers.conftest import MakeLab

ORDERS = ("41", "42")
PUBLISHERS = ("web1", "web2", "cron")
QUEUES = ("fast", "slow")
EACH = 24

#: What a publisher publishes: its tasks go to the orders and to the queues in turn.
TASKS: Mapping[str, Tasks] = {
    name: [(ORDERS[index // 2 % 2], 1000 * nth + index) for index in range(EACH)]
    for nth, name in enumerate(PUBLISHERS, start=1)
}


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    queues = {"task_queues": {name: {} for name in QUEUES}, "task_default_queue": "fast"}
    options = {"acks_late": True, "ignore_result": True}
    return make_lab(celery=queues, lock={"policy": "queue as published"}, task=options)


def publish_all(lab: Lab, stack: ExitStack) -> None:
    """Every publisher at the same time; returns when all have published."""
    processes = [
        stack.enter_context(publishing(lab.folder, name, lab.config["celery"], TASKS[name], QUEUES))
        for name in PUBLISHERS
    ]
    lab.go("publish")
    assert [process.wait(60) for process in processes] == [0, 0, 0]


def started(lab: Lab) -> dict[str, list[int]]:
    """The numbers by order, as their bodies began."""
    found: dict[str, list[int]] = defaultdict(list)
    for entry in lab.journal.read("start"):
        found[entry["order"]].append(entry["number"])
    return found


def published(name: str, order: str) -> list[int]:
    return [number for of, number in TASKS[name] if of == order]


@pytest.mark.slow
def test_the_order_is_that_of_the_places_that_were_taken(lab: Lab) -> None:
    with ExitStack() as stack:
        # Given both orders in work while three processes publish
        for _ in range(2):
            stack.enter_context(lab.worker("prefork", concurrency=2))
        for order in ORDERS:
            lab.app.tasks["apply"].delay(order, 0, hold="heads")
        lab.journal.wait_for("start", count=2)
        publish_all(lab, stack)
        queue = {order: runtime(lab.app).backend.peek(f"order:{order}") for order in ORDERS}
        assert [state.parked for state in queue.values()] == [36, 36]

        # When the workers go on
        lab.go("heads")
        lab.journal.wait_for("end", count=2 + 3 * EACH, timeout=60)

    # Then each order's tasks began in the order in which the store was told of them
    number_of = {
        f"{name}-{index:04}": number
        for name in PUBLISHERS
        for index, (_, number) in enumerate(TASKS[name])
    }
    for order, state in queue.items():
        places = [number_of[entry.task.partition(":")[0]] for entry in state.waiting]
        assert started(lab)[order] == [0, *places]
        # And that is what each of them published, in its order
        for name in PUBLISHERS:
            assert [n for n in places if n in published(name, order)] == published(name, order)


@pytest.mark.slow
def test_the_order_of_each_publisher_is_kept_while_they_run(lab: Lab) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(lab.worker("threads", concurrency=2))
        publish_all(lab, stack)
        lab.journal.wait_for("end", count=3 * EACH, timeout=60)

    for order, numbers in started(lab).items():
        assert len(numbers) == 36
        for name in PUBLISHERS:
            assert [n for n in numbers if n in published(name, order)] == published(name, order)
