"""The store inside one process."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Outcome
from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.change import REMEMBER_LOST
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import claim
from tests.contract.suites import Notes, Rules, Storage


class TestMemory(Rules, Storage, Notes):
    backend_class = MemoryBackend

    @pytest.fixture
    def url(self) -> str:
        return "memory://"

    def test_it_remembers_nothing_of_keys_whose_tasks_are_forgotten(
        self, backend: MemoryBackend, clock: ManualClock
    ) -> None:
        for number in range(100):
            backend.enter(claim("done", key=f"done {number}"))
            backend.leave(claim("done", key=f"done {number}"), Outcome.DONE)
            backend.enter(claim("lost", key=f"lost {number}"))
        clock.advance(11)
        for number in range(100):
            backend.reap(f"lost {number}")
        clock.advance(REMEMBER_LOST / 1_000_000)

        backend.reap("another key")

        assert backend._keys == {}
        assert backend._forget == []

    def test_a_refused_task_leaves_nothing_in_memory(self, backend: MemoryBackend) -> None:
        backend.enter(claim("a"))
        for number in range(100):
            backend.enter(claim(f"refused {number}"))
        backend.leave(claim("a"), Outcome.OVER)

        assert backend._keys == {}


@pytest.mark.parametrize("url", ["memory://x", "memory:///", "memory:", "redis://"])
def test_its_url_takes_nothing_more(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        MemoryBackend.from_url(url, BackendOptions())
