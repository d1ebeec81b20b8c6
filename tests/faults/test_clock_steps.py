"""The clock of a store's server steps by an hour, forward or back, while locks are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from celery_dlock import Lease, StaleFencingToken
from celery_dlock.core.state import Busy, Outcome
from celery_dlock.locks.refused import Refused
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, wall_clock
from celery_dlock.testing.contract.words import SECOND, claim, park, running, woken
from tests.services.effects import Effects
from tests.services.machine import PostgresqlOnMachine, RedisOnMachine, ZooKeeperOnMachine
from tests.services.process import Process, renewal
from tests.services.require import require
from tests.services.until import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

HOUR = 3600

#: Seconds.
TTL = 1.5

SERVERS = {"redis": RedisOnMachine, "postgresql": PostgresqlOnMachine}

Step = Callable[[int], None]


@dataclass
class HostClock:
    """SQLite goes by that of its host."""

    ahead: int = 0

    def __call__(self) -> int:
        return wall_clock() + self.ahead * SECOND

    def is_ahead(self, seconds: int) -> None:
        self.ahead = seconds


@pytest.fixture
def server() -> Iterator[RedisOnMachine]:
    require("redis")
    with RedisOnMachine() as server:
        yield server


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    resource = Effects(tmp_path)
    resource.create()
    return resource


@pytest.fixture
def process(server: RedisOnMachine) -> Iterator[Process]:
    with closing(Process(open_backend(server.url, BackendOptions("clocks")))) as process:
        yield process


@pytest.fixture(
    params=[*(pytest.param(name, marks=pytest.mark.server(name)) for name in SERVERS), "sqlite"]
)
def stepping(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Process, Step]]:
    """A process, and what puts its store's clock ahead."""
    if request.param in SERVERS:
        require(request.param)
        with (
            SERVERS[request.param]() as server,
            closing(Process(open_backend(server.url, BackendOptions("clocks")))) as process,
        ):
            yield process, server.machine.clock_is_ahead
        return
    clock = HostClock()
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    with closing(Process(open_backend(url, BackendOptions(clock=clock)))) as process:
        yield process, clock.is_ahead


def test_a_step_forward_ends_leases_whose_holders_are_told_and_the_fence_holds(
    stepping: tuple[Process, Step], effects: Effects
) -> None:
    process, step = stepping
    # Given one that holds a key and one that waits for it
    late = process.take("late", "key", TTL)
    park(process.store, "next")

    step(HOUR)

    # Then the next one is woken (a sweep leaves out a key that is just being renewed) and gets it,
    # though the first may still trust its lease
    until("the next one is woken", lambda: woken(process.store.sweep()) == ["next"])
    following = process.take("next", "key", TTL)
    # And its holder is told at its next renewal
    until("it is told", lambda: late.lost, timeout=TTL)
    # And the fence holds, now and when the clock has been set right
    assert effects.pay(following, "the payment")
    with pytest.raises(StaleFencingToken):
        effects.pay(late, "the payment")
    step(0)
    process.manager.release(following, Outcome.DONE)
    assert process.take("third", "key", TTL).fencing_token > following.fencing_token


def test_a_step_back_takes_no_lease_and_keeps_the_keys_of_the_dead(
    stepping: tuple[Process, Step],
) -> None:
    process, step = stepping
    held = process.take("held", "key", TTL)
    dead = claim("dead", key="of the dead", ttl=TTL)
    running(process.store.enter(dead))  # and nobody renews it
    park(process.store, "next")

    step(-HOUR)

    # Then who holds a key goes on, and it is renewed
    until("it is renewed", renewal(held))
    assert not held.lost
    # And gives it to the next one, with a larger token
    process.manager.release(held, Outcome.DONE)
    assert process.take("next", "key", TTL).fencing_token > held.fencing_token
    # And what nobody gives back stays taken for the hour, unless an operator releases it
    refused = process.ask("other", "of the dead", TTL)
    assert isinstance(refused, Refused)
    assert isinstance(refused.verdict, Busy)
    assert refused.verdict.left > HOUR * SECOND
    process.store.leave(dead, Outcome.ABANDONED)
    assert isinstance(process.ask("other", "of the dead", TTL), Lease)


@pytest.mark.server("redis")
def test_data_that_is_lost_as_the_clock_steps_back_takes_tokens_along_and_the_fence_refuses(
    server: RedisOnMachine, process: Process, effects: Effects
) -> None:
    before = process.take("before", "key", TTL)
    assert effects.pay(before, "a payment")

    server.kill()
    server.machine.clock_is_ahead(-HOUR)
    server.start()

    after = until("it is back", lambda: process.answers("after", "key", TTL))
    assert isinstance(after, Lease)
    assert after.fencing_token < before.fencing_token
    with pytest.raises(StaleFencingToken):
        effects.pay(after, "another payment")


@pytest.mark.server("zookeeper")
def test_a_zookeeper_whose_clock_steps_keeps_its_sessions_and_their_locks() -> None:
    with (
        ZooKeeperOnMachine() as server,
        closing(Process(open_backend(server.url, BackendOptions("clocks", ttl=2.0)))) as process,
        closing(Process(open_backend(server.url, BackendOptions("clocks", ttl=2.0)))) as other,
    ):
        held = process.take("held", "key", 2.0)
        for ahead in (HOUR, -HOUR):
            server.machine.clock_is_ahead(ahead)
            until("it is renewed", renewal(held))
            assert isinstance(other.ask("other", "key", 2.0), Refused)
        assert not held.lost
