"""Fixtures for tests of locked tasks; pytest finds them as soon as the package is installed.

They are not in :mod:`celery_dlock`, because pytest imports this file at its start in every project
that has the package installed: importing it there would import Celery, whether tests use it or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from celery_dlock import Lease
    from celery_dlock.testing import InlineWorker, ManualClock, StaleHolder


@pytest.fixture
def stale_holder() -> Callable[..., StaleHolder]:
    """``stale_holder(task, *args, **kwargs)``: took the task's lock, was paused past its lease."""
    from celery_dlock.testing import stale_holder

    return stale_holder


@pytest.fixture
def dlock_in_memory() -> Iterator[Callable[[Any], ManualClock]]:
    """``dlock_in_memory(app)``: until the test ends the app reaches no server of its settings."""
    from celery_dlock.testing import in_memory

    with ExitStack() as until_then:
        yield lambda app: until_then.enter_context(in_memory(app))


@pytest.fixture
def held_by_another() -> Callable[..., AbstractContextManager[Lease]]:
    """A context manager, ``held_by_another(key)``: somebody else holds *key* in the block."""
    from celery_dlock.testing import held_by_another

    return held_by_another


@pytest.fixture
def checked_lock_order() -> Iterator[Callable[[Any], None]]:
    """``checked_lock_order(app)``: locks are nested in the order of all such tests before."""
    from celery_dlock.testing import checked_lock_order

    with ExitStack() as until_then:
        yield lambda app: until_then.enter_context(checked_lock_order(app))


@pytest.fixture
def inline_worker() -> Iterator[Callable[[Any], InlineWorker]]:
    """``inline_worker(app)``: it handles the next message when the test says ``deliver()``."""
    from celery_dlock.testing import inline_worker

    with ExitStack() as until_then:
        yield lambda app: until_then.enter_context(inline_worker(app))
