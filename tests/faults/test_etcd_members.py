"""Members of an etcd that die, stop, or are cut off, with locks held on it.

No token goes back, nothing is lost, and others get a key when its holder trusts its lease no more;
without a majority nothing happens at all, and with one again it goes on where it was.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from celery_dlock.core.state import (
    Claim,
    KeyState,
    NotHeld,
    Outcome,
    Renewed,
    RenewVerdict,
    Run,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.etcd.store import EtcdBackend
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.services.etcd import EtcdServer
from tests.services.etcd_cluster import EtcdCluster
from tests.services.until import until
from tests.services.zookeeper_work import Work

pytestmark = [pytest.mark.server("etcd"), pytest.mark.slow]

#: Seconds; the server counts a lease of four for it.
TTL = 3.0

Fault = Callable[[EtcdCluster, EtcdServer], None]


def cut_off(cluster: EtcdCluster, member: EtcdServer, *, silent: bool) -> None:
    assert cluster.peers is not None
    cluster.peers.cut_off(member, silent=silent)


FAULTS: dict[str, Fault] = {
    "killed": lambda cluster, member: member.kill(),
    "paused": lambda cluster, member: member.pause(),
    "cut off": lambda cluster, member: cut_off(cluster, member, silent=False),
    "cut off silently": lambda cluster, member: cut_off(cluster, member, silent=True),
}


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster(cuttable=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    """All three, and all of them well again afterwards."""
    yield shared_cluster
    shared_cluster.recover()


@contextmanager
def backend_at(url: str, prefix: str = "") -> Iterator[EtcdBackend]:
    options = BackendOptions(prefix=prefix or f"test-{uuid.uuid4().hex}", driver={"timeout": 2})
    backend = EtcdBackend.from_url(url, options)
    try:
        yield backend
    finally:
        backend.close()


def member_of(cluster: EtcdCluster, role: str) -> EtcdServer:
    return cluster.leader() if role == "leader" else cluster.followers()[0]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_nobody_gets_a_key_while_its_holder_trusts_its_lease_and_others_go_on(
    cluster: EtcdCluster, role: str, fault: str
) -> None:
    """The holder knows one member only, and its last renewal is the last that member answers."""
    member, prefix = member_of(cluster, role), f"test-{uuid.uuid4().hex}"
    others_url = "etcd://" + ",".join(m.address for m in cluster.members if m is not member)
    with (
        Work(cluster.url, backend_at) as work,
        backend_at(member.url, prefix) as backend,
        backend_at(others_url, prefix) as others,
    ):
        mine = claim("a", ttl=TTL)
        work.more()
        token = entered_until("it is held", backend, mine).token
        stop, trust = threading.Event(), [0.0]
        until("it is renewed", lambda: renew(backend, mine, trust))
        FAULTS[fault](cluster, member)
        renewals = threading.Thread(target=keep, args=(backend, mine, stop, trust))
        renewals.start()
        try:
            newer = entered_until("another gets the key", others, claim("b", ttl=TTL))
            granted = time.monotonic()
        finally:
            stop.set()
            renewals.join()

        work.more()
        gap, late = work.longest_gap(), granted - trust[0]
        print(f"\n{role} {fault}: nothing for {gap:.1f} s, free {late:.1f} s after the trust")  # noqa: T201
        assert late >= 0
        assert newer.token > token
    assert work.unexpected == []
    assert work.never_went_back()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_holder_that_knows_all_members_keeps_its_lock_though_the_leader_goes(
    cluster: EtcdCluster, fault: str
) -> None:
    with backend_at(cluster.url) as backend, Work(cluster.url, backend_at) as work:
        mine = claim("a", ttl=15)
        entered_until("it is held", backend, mine)
        work.more()

        FAULTS[fault](cluster, cluster.leader())

        renewed = until("it is renewed", lambda: verdict_of(backend, mine))
        assert isinstance(renewed, Renewed)
        work.more()
        assert backend.peek("key").holders[0].task == "a"
    assert work.unexpected == []
    assert work.never_went_back()


def test_a_renewal_by_a_leader_that_was_replaced_counts_for_nothing(cluster: EtcdCluster) -> None:
    """It answers what it was asked while it was paused, before it hears of the others."""
    leader, prefix = cluster.leader(), f"test-{uuid.uuid4().hex}"
    others = [member for member in cluster.members if member is not leader]
    with backend_at(leader.url, prefix) as backend, backend_at(others[0].url, prefix) as there:
        mine = claim("a", ttl=TTL)
        entered_until("it is held", backend, mine)
        leader.pause()
        until("another leads", lambda: leads_one_of(others))
        over = time.monotonic() + TTL / 2
        until("the next renewal", lambda: time.monotonic() > over)
        resumed = threading.Timer(0.3, leader.resume)
        resumed.start()

        began = time.monotonic()
        verdict = verdict_of(backend, mine)

        resumed.join()
        if isinstance(verdict, Renewed):
            while time.monotonic() < began + TTL - 0.1:
                assert there.peek("key").holders
        else:
            assert verdict in (NotHeld(), None)


def keep(backend: EtcdBackend, mine: Claim, stop: threading.Event, trust: list[float]) -> None:
    """Renew as a keeper does, until the lease is lost, and note how long it could be trusted."""
    while time.monotonic() < trust[0] and not stop.wait(0.1):
        if renew(backend, mine, trust) is False:
            return


def renew(backend: EtcdBackend, mine: Claim, trust: list[float]) -> bool | None:
    """Whether it is held still; ``None`` if nobody answers."""
    sent = time.monotonic()
    verdict = verdict_of(backend, mine)
    if isinstance(verdict, Renewed):
        trust[0] = sent + TTL
    return None if verdict is None else isinstance(verdict, Renewed)


def verdict_of(backend: EtcdBackend, mine: Claim) -> RenewVerdict | None:
    try:
        return backend.renew([mine])[0]
    except BackendUnavailable:
        return None


def entered_until(what: str, backend: EtcdBackend, mine: Claim) -> Run:
    """Ask until the key is given, as a task does that is put back."""

    def entered() -> Run | None:
        try:
            verdict = backend.enter(mine).verdict
        except BackendUnavailable:
            return None
        return verdict if isinstance(verdict, Run) else None

    verdict = until(what, entered, timeout=40)
    assert verdict is not None
    return verdict


def leads_one_of(members: list[EtcdServer]) -> bool:
    said = [member.ask("maintenance/status") for member in members]
    leaders = {each.get("leader") for each in said}
    return len(leaders) == 1 and leaders <= {each["header"]["member_id"] for each in said}


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_member_that_comes_back_empty_learns_all_from_the_others(
    cluster: EtcdCluster, role: str
) -> None:
    prefix = f"test-{uuid.uuid4().hex}"
    with backend_at(cluster.url, prefix) as backend, Work(cluster.url, backend_at) as work:
        entered_until("it is held", backend, claim("a", ttl=60))
        park(backend, "b", "c")
        member = member_of(cluster, role)
        member.kill()
        cluster.replace(member)
        work.more()

        with backend_at(member.url, prefix) as there:
            state = until("it answers", lambda: peeked(there))
            assert state is not None
            assert [holder.task for holder in state.holders] == ["a"]
            assert state.parked == 2
    assert work.unexpected == []
    assert work.never_went_back()


@pytest.mark.parametrize("fault", ["killed", "cut off silently"])
def test_without_a_majority_nothing_happens_and_with_one_it_goes_on_where_it_was(
    cluster: EtcdCluster, fault: str
) -> None:
    with backend_at(cluster.url) as backend:
        mine = claim("a", ttl=60)
        token = entered_until("it is held", backend, mine).token
        park(backend, "b", "c")

        for member in cluster.members[:2]:
            FAULTS[fault](cluster, member)
        began = time.monotonic()
        until("it is known", lambda: peeked(backend) is None)
        for operation in (
            lambda: backend.enter(claim("d", key="other")),
            lambda: backend.renew([mine]),
            lambda: backend.leave(claim("e", key="other"), Outcome.DONE),
        ):
            with pytest.raises(BackendUnavailable):
                operation()
        print(f"\nmajority {fault}: refused {time.monotonic() - began:.1f} s long")  # noqa: T201
        cluster.recover()
        began = time.monotonic()

        state = until("it answers again", lambda: peeked(backend))
        print(f"majority {fault}: answers {time.monotonic() - began:.1f} s after it is back")  # noqa: T201
        assert state is not None
        assert [holder.task for holder in state.holders] == ["a"]
        assert state.parked == 2
        until("it is renewed", lambda: isinstance(verdict_of(backend, mine), Renewed))
        assert woken(backend.leave(mine, Outcome.DONE)) == ["b"]
        assert running(backend.enter(claim("b", wait=QUEUE))).token > token
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]


def peeked(backend: EtcdBackend) -> KeyState | None:
    try:
        return backend.peek("key")
    except BackendUnavailable:
        return None
