"""What a lease of etcd is good for, whoever answers and whenever; with a client that is scripted.

On real servers a leader that was replaced answers a renewal once in a while, and cannot be made to.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_dlock.core.lease import unsleeping
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.etcd.client import EtcdClient
from celery_dlock.stores.etcd.leases import Leases

SECOND = 1_000_000


class Scripted:
    """Answers each call with what *term* it is in and how many seconds it grants."""

    place = "etcd"

    def __init__(self, *terms: int) -> None:
        self.calls: list[str] = []
        self._terms = list(terms)
        self.grants: int | None = None

    def call(self, name: str, request: Any, *, repeats: bool) -> Any:
        self.calls.append(name)
        term = self._terms.pop(0) if len(self._terms) > 1 else self._terms[0]
        seconds = self.grants if self.grants is not None else getattr(request, "TTL", 40)
        return SimpleNamespace(
            ID=len(self.calls), TTL=seconds, header=SimpleNamespace(raft_term=term)
        )


def leases_with(client: Scripted) -> Leases:
    return Leases(cast("EtcdClient", client))


def test_what_another_term_said_is_asked_again() -> None:
    client = Scripted(5, 5, 6)
    leases, now = leases_with(client), unsleeping()

    lease = leases.lasting(30 * SECOND, now)
    assert leases.lasting(30 * SECOND, now, 5) == lease
    assert client.calls == ["LeaseGrant"]
    assert leases.lasting(30 * SECOND, now, 6) == lease
    assert client.calls == ["LeaseGrant", "LeaseKeepAlive", "LeaseKeepAlive"]


def test_a_term_that_nobody_confirms_is_told() -> None:
    leases = leases_with(Scripted(5))

    with pytest.raises(BackendUnavailable):
        leases.lasting(30 * SECOND, unsleeping(), 6)


def test_the_time_that_was_granted_counts_and_not_the_one_asked_for() -> None:
    client = Scripted(5)
    client.grants = 20
    with pytest.raises(BackendUnavailable):
        leases_with(client).lasting(30 * SECOND, unsleeping())


def test_a_lease_that_may_be_ending_is_not_prolonged_but_replaced() -> None:
    client = Scripted(5)
    leases, now = leases_with(client), unsleeping()
    client.grants = 0
    with pytest.raises(BackendUnavailable):
        leases.lasting(30 * SECOND, now)
    client.calls.clear()
    client.grants = None

    leases.lasting(30 * SECOND, now)

    assert client.calls == ["LeaseGrant"]


def test_what_was_counted_asleep_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Scripted(5)
    leases, awake = leases_with(client), time.clock_gettime
    leases.lasting(30 * SECOND, unsleeping())
    leases.ending(300 * SECOND)
    client.calls.clear()

    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: awake(clock) + 400 * (clock == time.CLOCK_BOOTTIME)
    )
    leases.lasting(30 * SECOND, unsleeping())
    leases.ending(300 * SECOND)

    assert client.calls == ["LeaseGrant"] * 2


def test_a_lease_for_memories_is_never_prolonged() -> None:
    client = Scripted(5)
    leases = leases_with(client)

    first = leases.ending(2 * SECOND)

    assert leases.ending(2 * SECOND) == first
    leases.gone()
    assert leases.ending(2 * SECOND) != first
    assert client.calls == ["LeaseGrant"] * 2
