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
    from celery_dlock.testing import ManualClock, StaleHolder


@pytest.fixture
def stale_holder() -> Callable[..., StaleHolder]:
    """``stale_holder(task, *args, **kwargs)``: took the task's lock, was paused past its lease."""
    from celery_dlock.testing import stale_holder

    return stale_holder


@pytest.fixture
def dlock_in_memory() -> Iterator[Callable[[Any], ManualClock]]:
    """``dlock_in_memory(app)``: the app takes its locks on ``memory://`` until the test ends."""
    from celery_dlock.testing import in_memory

    with ExitStack() as until_then:
        yield lambda app: until_then.enter_context(in_memory(app))
