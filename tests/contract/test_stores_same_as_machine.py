"""Every store gives the machine's verdicts on the same random operations.

Redis and the rows have thousands of them in tests of their own; here each store, on its real
server, is held to the machine as a whole, driver included.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.redlock import node as redlock_node
from celery_dlock.stores.zookeeper import client as zookeeper_client
from tests.contract.twins import Clock, Twin, assert_alike, operations
from tests.services.stores import STORES, Store

OTHERS = [store.param() for store in STORES if store.scheme != "memory"]


@pytest.mark.slow
@pytest.mark.parametrize("store", OTHERS)
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.generate],  # what fails is as clear on the rows in memory, and shrinks there
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ops=st.lists(operations, min_size=30, max_size=50))
def test_a_store_answers_as_the_machine_does(
    store: Store,
    ops: list[tuple[Any, ...]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All there is is listed after each operation, which takes a busy machine longer than a worker
    # would wait.
    monkeypatch.setattr(zookeeper_client, "ANSWER_TIMEOUT", 60.0)
    monkeypatch.setattr(redlock_node, "NODE_TIMEOUT", 60.0)
    monkeypatch.setattr(redlock_node, "OF_A_LEASE", 2.0)
    url, clock = store.url(request.getfixturevalue, tmp_path), Clock()
    options = BackendOptions(prefix=f"alike-{uuid.uuid4().hex}", clock=clock)
    machine = Twin(MemoryBackend(options))
    with closing(open_backend(url, options)) as backend:
        assert_alike(machine, Twin(backend), clock, ops)
