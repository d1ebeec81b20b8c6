"""The master is taken away while locks are held: what Sentinel and Cluster keep, and what not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing

import pytest
import redis

from celery_dlock import BackendUnavailable, StaleFencingToken
from celery_dlock.core.state import Busy, Outcome
from celery_dlock.locks.refused import Refused
from celery_dlock.stores.base import Copies
from celery_dlock.testing.contract.words import park
from tests.services.effects import Effects
from tests.services.failovers import DRIVER, Failover, cluster, out_of_touch, sentinel
from tests.services.process import Process, first_lease
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis import RedisServer
from tests.services.redis_sentinel import RedisSentinel
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

#: Seconds: a lease that outlasts a failover, and one that does not.
LONG, SHORT = 8.0, 1.0
#: One that is first renewed when a failover is over.
UNRENEWED = 90.0

Harm = Callable[[RedisServer], None]


@pytest.fixture(params=[sentinel, cluster], ids=["sentinel", "cluster"])
def failover(request: pytest.FixtureRequest) -> Iterator[Failover]:
    started: Callable[[], AbstractContextManager[Failover]] = request.param
    with started() as servers:
        yield servers


@pytest.fixture
def holder(failover: Failover) -> Iterator[Process]:
    with closing(Process(failover.open())) as process:
        yield process


@pytest.fixture
def other(failover: Failover) -> Iterator[Process]:
    with closing(Process(failover.open())) as process:
        yield process


@pytest.fixture
def effects(tmp_path_factory: pytest.TempPathFactory) -> Effects:
    resource = Effects(tmp_path_factory.mktemp("effects"))
    resource.create()
    return resource


def neighbour(failover: Failover, key: str) -> str:
    """Another key on the same master."""
    keys = (f"{key} {number}" for number in range(1000))
    return next(other for other in keys if failover.master(other) is failover.master(key))


@pytest.mark.parametrize("harm", [RedisServer.kill, RedisServer.pause], ids=["killed", "paused"])
def test_leases_outlast_a_failover_or_their_holders_are_told_in_time(
    failover: Failover,
    holder: Process,
    other: Process,
    effects: Effects,
    harm: Harm,
    record_property: Callable[[str, object], None],
) -> None:
    # Given two holders on one master, one with a lease that is shorter than a failover
    long, short = "order", neighbour(failover, "order")
    kept, lost = holder.take("kept", long, LONG), holder.take("lost", short, SHORT)
    master = failover.master(long)
    until("the replicas know", lambda: _all_know(failover, master))

    # When their master is gone
    harm(master)
    gone_at = time.monotonic()
    refused = until("the store is back", lambda: other.answers("other", long, LONG))
    back = time.monotonic() - gone_at
    record_property("recovery", f"{failover.kind}, master {harm.__name__}: {back:.2f} s")
    taken = first_lease(other, "next", short, SHORT)
    taken_at = time.monotonic()

    # Then who has the short one was told before somebody else got it, and within the lease
    assert lost.lost
    # (The thread that tells may wait for one answer, and for the map of a cluster.)
    assert holder.told[short] <= min(taken_at, gone_at + SHORT + 2 * DRIVER["socket_timeout"])
    assert taken.fencing_token > lost.fencing_token
    # And its late write is refused, whoever writes first
    assert effects.pay(taken, "the payment")
    with pytest.raises(StaleFencingToken):
        effects.pay(lost, "the payment")
    assert len(effects.payments()) == 1
    # And the long one is held by the same as before, renewed, and not lost
    assert isinstance(refused, Refused)
    assert isinstance(refused.verdict, Busy)
    assert refused.verdict.holder
    assert refused.verdict.holder.task == "kept"
    until("it is renewed by the new master", lambda: kept.remaining() > LONG * 5 / 6)
    assert long not in holder.told
    assert holder.manager.release(kept, Outcome.OVER) is False
    later = other.take("other", long, LONG)
    assert later.fencing_token > kept.fencing_token

    # When a master that was only paused comes back, it knows better soon
    if harm is RedisServer.pause:
        master.resume()
        until("it follows", lambda: follows(master))
        still = other.store.peek(long).holders
        assert [held.token for held in still] == [later.fencing_token]


def test_exclusion_breaks_where_a_replica_did_not_know_the_holder_and_the_fence_holds(
    failover: Failover, holder: Process, other: Process, effects: Effects
) -> None:
    # Given a holder and a message of which no replica has heard
    holder.store.peek("order")  # it is connected
    master = failover.master("order")
    with out_of_touch(master, failover.followers(master)):
        first = holder.take("first", "order", UNRENEWED)
        park(holder.store, "lost", key="order")
        # When the master is gone and one of them takes its place
        master.kill()

    # Then somebody else gets the key, while the first has every reason to trust its lease
    second = first_lease(other, "second", "order", UNRENEWED)
    assert not first.lost
    assert first.remaining() > 0
    # And the message is lost
    assert other.store.message("order", "lost") is None
    # And that is where the fence comes in: tokens have grown, and the late write is refused
    assert second.fencing_token > first.fencing_token
    assert effects.pay(second, "the payment")
    with pytest.raises(StaleFencingToken):
        effects.pay(first, "the payment")
    assert [token for _, _, token in effects.payments()] == [second.fencing_token]


def test_with_copies_waited_for_no_such_holder_starts(failover: Failover, other: Process) -> None:
    with closing(Process(failover.open(copies=Copies(1, timeout=0.2)))) as holder:
        # Given replicas that hear nothing: nobody starts
        holder.store.peek("order")  # it is connected
        master = failover.master("order")
        with (
            out_of_touch(master, failover.followers(master)),
            pytest.raises(BackendUnavailable, match="0 of 1 replicas"),
        ):
            holder.take("first", "order", LONG)
        # And with one that does
        first = first_lease(holder, "first", "order", LONG)

        # When the master is gone
        master.kill()

        # Then the one that takes its place knows the holder
        told = until("the store is back", lambda: other.answers("second", "order", LONG))
        assert isinstance(told, Refused)
        assert not first.lost


def test_a_master_that_is_cut_off_serves_nobody_and_knows_better_when_it_is_back(
    effects: Effects,
) -> None:
    with ExitStack() as running:
        proxies: list[Proxy] = []

        def behind_a_proxy(master: RedisServer) -> int:
            proxies.append(running.enter_context(proxy_to(master.port)))
            return proxies[0].port

        servers = running.enter_context(RedisSentinel(behind_a_proxy))
        plant, proxy = Failover("redis+sentinel", servers), proxies[0]
        holder = running.enter_context(closing(Process(plant.open())))
        other = running.enter_context(closing(Process(plant.open())))
        # Given a holder that the master alone has heard of
        holder.store.peek("order")
        old = servers.master
        with out_of_touch(old, servers.replicas):
            first = holder.take("first", "order", LONG)
            # When nobody reaches the master any more: Sentinels, replicas, holders
            proxy.nonsense = b""
            proxy.cut()

        # Then another one gets the key from the new master, and the fence decides
        second = first_lease(other, "second", "order", LONG)
        assert effects.pay(second, "the payment")
        with pytest.raises(StaleFencingToken):
            effects.pay(first, "the payment")
        # And when it is back it follows, and its holder is forgotten
        proxy.nonsense = None
        until("it follows", lambda: follows(old))
        until("the first is told", lambda: "order" in holder.told)
        assert [held.token for held in other.store.peek("order").holders] == [second.fencing_token]
        assert not second.lost


def follows(server: RedisServer) -> bool:
    """Whether it is a replica now. It hangs up on everybody when it becomes one."""
    try:
        return bool(server.info("replication")["role"] == "slave")
    except redis.ConnectionError:
        return False


def _all_know(failover: Failover, master: RedisServer) -> bool:
    """Whether the replicas have all that *master* has."""
    mine = master.info("replication")["master_repl_offset"]
    others = (server.info("replication") for server in failover.followers(master))
    return all(other["slave_repl_offset"] >= mine for other in others)
