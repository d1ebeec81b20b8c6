"""``celery_setup`` on processes: its clusters work, its nodes can be killed and come back."""

from __future__ import annotations

import pytest
from pytest_celery import CeleryTestSetup

from tests.services.lab import Lab
from tests.services.nodes import LockStoreCluster
from tests.services.stores import SHARED, STORES
from tests.services.turns import done, held, nothing_is_left, numbers, parked

pytestmark = pytest.mark.server("redis")

REDIS = [store.param() for store in STORES if store.scheme == "redis"]


@pytest.mark.parametrize("store", SHARED)
def test_a_locked_task_runs_over_every_lock_store(
    celery_setup: CeleryTestSetup, lock_store_cluster: LockStoreCluster, lab: Lab
) -> None:
    assert celery_setup.ready()
    assert lock_store_cluster.ready()
    apply = celery_setup.app.tasks["apply"]
    held(lab, "42")
    sent = [apply.delay("42", number) for number in (1, 2, 3)]
    parked(lab, "42", 3)
    lab.go("42")

    assert sorted(done(sent)) == [1, 2, 3]
    assert sorted(numbers(lab, "42")) == [0, 1, 2, 3]
    nothing_is_left(lab, "42")


@pytest.mark.parametrize("store", REDIS)
def test_a_worker_node_can_be_killed_and_started_again(celery_setup: CeleryTestSetup) -> None:
    for worker in celery_setup.worker_cluster:
        assert "ready." in worker.logs()
        worker.kill()
        assert worker.container.status == "exited"
    result = celery_setup.app.tasks["apply"].delay("42", 1)
    assert not result.ready()

    celery_setup.worker.restart()

    assert done([result]) == [1]
    answers = celery_setup.app.control.ping(timeout=5.0, limit=1)
    assert [list(answer) for answer in answers] == [[celery_setup.worker.hostname()]]


@pytest.mark.parametrize("store", REDIS)
def test_a_broker_node_can_be_killed_and_started_again(celery_setup: CeleryTestSetup) -> None:
    apply = celery_setup.app.tasks["apply"]
    assert done([apply.delay("42", 1)]) == [1]

    celery_setup.broker.kill()
    assert not celery_setup.broker_cluster.ready()
    celery_setup.broker.restart()

    assert celery_setup.ready()
    assert done([apply.delay("42", 2)]) == [2]
