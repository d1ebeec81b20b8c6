"""An operator at a store in a file, and an application whose store and clock are the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from celery_dlock.runtime import kept_in_memory, runtime
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing import ManualClock
from tests.cli.conftest import desk

__all__ = ["desk"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> Iterator[Celery]:
    made = Celery("shop", broker="memory://", set_as_current=False)
    with kept_in_memory(made, clock):
        yield made


@pytest.fixture
def store(app: Celery) -> LockBackend:
    return runtime(app).backend
