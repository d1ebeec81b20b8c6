"""Members of a ZooKeeper ensemble that die, stop, or are cut off, with locks held on it.

No token goes back, nobody gets a key whose holder may still trust its lease, and nothing is lost;
without a majority nothing happens at all, and with one again it goes on where it was.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from celery_dlock.core.state import Claim, KeyState, NotHeld, Outcome, Renewed, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.services.require import require
from tests.services.until import until
from tests.services.zookeeper import ZooKeeperServer
from tests.services.zookeeper_ensemble import ZooKeeperEnsemble
from tests.services.zookeeper_work import SESSION, Work, backend_at

pytestmark = [pytest.mark.server("zookeeper"), pytest.mark.slow]

SECOND = 1_000_000

Fault = Callable[[ZooKeeperEnsemble, ZooKeeperServer], None]

FAULTS: dict[str, Fault] = {
    "killed": lambda ensemble, member: member.kill(),
    "paused": lambda ensemble, member: member.pause(),
    "cut off": lambda ensemble, member: ensemble.cut_off(member),
    "cut off silently": lambda ensemble, member: ensemble.cut_off(member, silent=True),
}


@pytest.fixture(scope="module")
def shared_ensemble() -> Iterator[ZooKeeperEnsemble]:
    require("zookeeper")
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(shared_ensemble: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    """All three, and all of them well again afterwards."""
    yield shared_ensemble
    recover(shared_ensemble)


def member_of(ensemble: ZooKeeperEnsemble, role: str) -> ZooKeeperServer:
    return ensemble.leader() if role == "leader" else ensemble.followers()[0]


def others_url(ensemble: ZooKeeperEnsemble, member: ZooKeeperServer) -> str:
    others = [other.address for other in ensemble.members if other is not member]
    return f"zookeeper://{','.join(others)}"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_nobody_gets_a_key_while_its_holder_trusts_its_lease_and_others_go_on(
    ensemble: ZooKeeperEnsemble, role: str, fault: str
) -> None:
    """The holder knows one member only, and its last renewal is the last that member answers.

    Others go on as soon as there is a leader again.
    """
    member, prefix = member_of(ensemble, role), f"test-{uuid.uuid4().hex}"
    with (
        Work(ensemble.url) as work,
        backend_at(member.url, prefix) as backend,
        backend_at(others_url(ensemble, member), prefix) as others,
    ):
        lease = backend.lease_of(10 * SECOND) / SECOND
        mine = claim("a", ttl=lease)
        entered_until("the others are connected", others, claim("warm", key="warm", ttl=lease))
        work.more()
        token = running(backend.enter(mine)).token
        threading.Event().wait(SESSION / 6)  # the leader has heard nothing since
        trusted_until = time.monotonic() + renewed_for(backend, mine, lease)
        FAULTS[fault](ensemble, member)
        stop, trust = threading.Event(), [trusted_until]
        renewals = threading.Thread(target=keep, args=(backend, mine, lease, stop, trust))
        renewals.start()
        try:
            newer = entered_until("another gets the key", others, claim("b", ttl=lease))
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


def test_a_leader_that_nobody_follows_any_more_renews_no_lease(
    ensemble: ZooKeeperEnsemble,
) -> None:
    """It does not know yet, and it would answer a ``sync``."""
    leader = ensemble.leader()
    with backend_at(leader.url) as backend:
        mine = claim("a", ttl=SESSION / 2)
        running(backend.enter(mine))
        assert isinstance(backend.renew([mine])[0], Renewed)
        ensemble.cut_off(leader, silent=True)

        for _ in range(2):
            with pytest.raises(BackendUnavailable):
                backend.renew([mine])


def keep(
    backend: ZooKeeperBackend,
    mine: Claim,
    lease: float,
    stop: threading.Event,
    trust: list[float],
) -> None:
    """Renew as a keeper does, until the lease is lost, and note how long it could be trusted."""
    while time.monotonic() < trust[0] and not stop.wait(lease / 20):
        sent = time.monotonic()
        try:
            (verdict,) = backend.renew([mine])
        except BackendUnavailable:
            continue
        if verdict == NotHeld():
            return
        assert isinstance(verdict, Renewed)
        if sent < trust[0]:
            trust[0] = sent + lease


def renewed_for(backend: ZooKeeperBackend, mine: Claim, lease: float) -> float:
    """Seconds from now for which the lease may be trusted, after a renewal."""
    sent = time.monotonic()
    assert isinstance(backend.renew([mine])[0], Renewed)
    return lease - (time.monotonic() - sent)


def entered_until(what: str, backend: ZooKeeperBackend, mine: Claim) -> Run:
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


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_member_that_comes_back_empty_learns_all_from_the_others(
    ensemble: ZooKeeperEnsemble, role: str
) -> None:
    prefix = f"test-{uuid.uuid4().hex}"
    with backend_at(ensemble.url, prefix, session=10.0) as backend, Work(ensemble.url) as work:
        running(backend.enter(claim("a", ttl=5)))
        park(backend, "b", "c", ttl=5)
        member = member_of(ensemble, role)
        member.kill()
        member.wipe()
        member.start()
        work.more()

        with backend_at(member.url, prefix) as there:
            until("it answers", lambda: there.peek("key").parked == 2)
            assert [holder.task for holder in there.peek("key").holders] == ["a"]
    assert work.unexpected == []
    assert work.never_went_back()


@pytest.mark.parametrize("fault", ["killed", "cut off silently"])
def test_without_a_majority_nothing_happens_and_with_one_it_goes_on_where_it_was(
    ensemble: ZooKeeperEnsemble, fault: str
) -> None:
    with backend_at(ensemble.url, session=10.0) as backend:
        lease = backend.lease_of(SECOND) / SECOND
        mine = claim("a", ttl=lease)
        token = running(backend.enter(mine)).token
        park(backend, "b", "c", ttl=5)
        until("all have it", lambda: all(m.mode for m in ensemble.members))

        for member in ensemble.members[:2]:
            FAULTS[fault](ensemble, member)
        began = time.monotonic()
        until("it is known", lambda: not backend.certain(0) or refused(backend))
        for operation in (
            lambda: backend.enter(claim("d", key="other", ttl=lease)),
            lambda: backend.renew([mine]),
            lambda: backend.leave(claim("e", key="other"), Outcome.DONE),
        ):
            with pytest.raises(BackendUnavailable):
                operation()
        print(f"\nmajority {fault}: refused {time.monotonic() - began:.1f} s long")  # noqa: T201
        recover(ensemble)

        state = until("it answers again", lambda: peeked(backend), timeout=40)
        assert state is not None
        assert state.parked == 2
        assert not any(waiting.task == "d" for waiting in state.waiting)
        backend.leave(mine, Outcome.DONE)
        wakes = until("the next is called", lambda: woken(backend.reap("key")) or called(backend))
        assert wakes == ["b"]
        assert running(backend.enter(claim("b", wait=QUEUE, ttl=lease))).token > token
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]


def refused(backend: ZooKeeperBackend) -> bool:
    try:
        backend.enter(claim("x", key="x", ttl=1))
    except BackendUnavailable:
        return True
    return False


def peeked(backend: ZooKeeperBackend) -> KeyState | None:
    try:
        return backend.peek("key")
    except BackendUnavailable:
        return None


def called(backend: ZooKeeperBackend) -> list[str]:
    return [grant.task for grant in backend.peek("key").grants]


def recover(ensemble: ZooKeeperEnsemble) -> None:
    """Let every member be well again, and wait until it is."""
    for member in ensemble.members:
        ensemble.heal(member)
        if member.running:
            member.resume()
        else:
            member.begin()
    until("all serve", lambda: all(member.mode for member in ensemble.members), timeout=60)
