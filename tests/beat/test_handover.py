"""A leader that is shut down gives the lead back: the next one does not wait for its lease.

In real processes over one kind of store; that each gives it back is in ``test_every_store``.
"""

from __future__ import annotations

import time

import pytest

from tests.beat.conftest import MakeCrew
from tests.beat.evidence import repeats
from tests.beat.test_failover import only_leaders_have_written
from tests.beat.test_in_hand import REDIS

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.server("redis")]

#: Seconds. It is renewed each third, so two of them are left at least.
TTL = 90.0


def test_a_leader_that_is_shut_down_is_followed_before_its_lease_ends(make_crew: MakeCrew) -> None:
    crew, _, runs = make_crew(REDIS, TTL)
    first = crew.new_leader()
    crew.settle()
    at = time.monotonic()
    assert first.stop() == 0
    crew.new_leader(first)
    took = time.monotonic() - at
    print(f"took over after {took:.2f} s, the lease is {TTL} s")  # noqa: T201
    assert took < TTL * 2 / 3
    crew.goes_on()
    first.start()

    broken = crew.finish(runs)
    assert not broken, "\n".join(map(str, broken))
    assert repeats(crew.journal) == []  # nothing was in doubt
    only_leaders_have_written(crew)
