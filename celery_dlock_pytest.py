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
    """Until the test ends no application reaches a server of its settings.

    ``dlock_in_memory(app)`` gives the clock of its locks.
    """
    from celery_dlock.testing import ManualClock, in_memory
    from celery_dlock.testing.isolation import every_app_isolated

    with every_app_isolated(ManualClock()), ExitStack() as until_then:
        yield lambda app: until_then.enter_context(in_memory(app))


@pytest.fixture
def held_by_another() -> Callable[..., AbstractContextManager[Lease]]:
    """A context manager, ``held_by_another(key)``: somebody else holds *key* in the block."""
    from celery_dlock.testing import held_by_another

    return held_by_another


@pytest.fixture
def checked_lock_order() -> Iterator[Callable[[Any], None]]:
    """Locks of each app are nested in the order of all such tests before.

    ``checked_lock_order(app)`` says so of one application.
    """
    from celery_dlock.testing import checked_lock_order
    from celery_dlock.testing.project import every_lock_order_checked

    with every_lock_order_checked(), ExitStack() as until_then:
        yield lambda app: until_then.enter_context(checked_lock_order(app))


@pytest.fixture
def inline_worker(dlock_in_memory: object) -> Iterator[Callable[[Any], InlineWorker]]:
    """``inline_worker(app)``: it handles the next message when the test says ``deliver()``."""
    from celery_dlock.testing import inline_worker

    with ExitStack() as until_then:
        yield lambda app: until_then.enter_context(inline_worker(app))
