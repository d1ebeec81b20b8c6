"""Members of an etcd or a ZooKeeper that die, stop, or are cut off, with locks held on it.

No token goes back, nothing is lost, and others get a key when its holder trusts its lease no more;
without a majority nothing happens at all, and with one again it goes on where it was.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import pytest

from celery_dlock.core.state import Claim, KeyState, NotHeld, Outcome, Renewed, RenewVerdict, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.etcd.store import EtcdBackend
from celery_dlock.testing.contract.words import QUEUE, SECOND, claim, park, running, woken
from tests.services.etcd import EtcdServer
from tests.services.etcd_cluster import EtcdCluster
from tests.services.require import require
from tests.services.until import until
from tests.services.zookeeper import ZooKeeperServer
from tests.services.zookeeper_ensemble import ZooKeeperEnsemble
from tests.services.zookeeper_work import SESSION, Work, backend_at

pytestmark = pytest.mark.slow

FAULTS = ["killed", "paused", "cut off", "cut off silently"]


class OnEtcd:
    """Three members of one etcd. Each claim has a lease of its own there."""

    lasting = 60.0

    def __init__(self, stack: ExitStack) -> None:
        self.cluster = stack.enter_context(EtcdCluster(cuttable=True))
        self.recover = self.cluster.recover

    @contextmanager
    def at(self, url: str, prefix: str = "", session: float = 0.0) -> Iterator[LockBackend]:
        options = BackendOptions(prefix=prefix or new_prefix(), driver={"timeout": 2})
        with closing(EtcdBackend.from_url(url, options)) as backend:
            yield backend

    def cut_off(self, member: EtcdServer, *, silent: bool) -> None:
        assert self.cluster.peers is not None
        self.cluster.peers.cut_off(member, silent=silent)

    def comes_back_empty(self, member: EtcdServer) -> None:
        member.kill()
        self.cluster.replace(member)


class OnZooKeeper:
    """Three members of one ZooKeeper. All claims of a process end with its session."""

    lasting = 5.0

    def __init__(self, stack: ExitStack) -> None:
        require("zookeeper")
        self.cluster = stack.enter_context(ZooKeeperEnsemble())
        self.cut_off = self.cluster.cut_off

    def at(
        self, url: str, prefix: str = "", session: float = SESSION
    ) -> AbstractContextManager[LockBackend]:
        return backend_at(url, prefix, session)

    def comes_back_empty(self, member: ZooKeeperServer) -> None:
        member.kill()
        member.wipe()
        member.start()

    def recover(self) -> None:
        for member in self.cluster.members:
            self.cluster.heal(member)
            if member.running:
                member.resume()
            else:
                member.begin()
        members = self.cluster.members
        until("all serve", lambda: all(member.mode for member in members), timeout=60)


def new_prefix() -> str:
    return f"test-{uuid.uuid4().hex}"


def on(kind: Callable[[ExitStack], Any], server: str) -> Any:
    return pytest.param(kind, marks=pytest.mark.server(server), id=server)


ETCD, ZOOKEEPER = on(OnEtcd, "etcd"), on(OnZooKeeper, "zookeeper")


@pytest.fixture(scope="module", params=[ETCD, ZOOKEEPER])
def started(request: pytest.FixtureRequest) -> Iterator[Any]:
    with ExitStack() as stack:
        yield request.param(stack)


@pytest.fixture
def members(started: Any) -> Iterator[Any]:
    """All three, and all of them well again afterwards."""
    yield started
    started.recover()


def member_of(members: Any, role: str) -> Any:
    return members.cluster.leader() if role == "leader" else members.cluster.followers()[0]


def strike(members: Any, fault: str, member: Any) -> None:
    match fault:
        case "killed":
            member.kill()
        case "paused":
            member.pause()
        case _:
            members.cut_off(member, silent="silently" in fault)


def verdict_of(backend: LockBackend, mine: Claim) -> RenewVerdict | None:
    """What a renewal is answered; ``None`` if nobody answers."""
    try:
        return backend.renew([mine])[0]
    except BackendUnavailable:
        return None


def renew(backend: LockBackend, mine: Claim, lease: float, trust: list[float]) -> bool:
    """Whether it is held still; *trust* is until when its holder may think so."""
    sent = time.monotonic()
    verdict = verdict_of(backend, mine)
    if isinstance(verdict, Renewed) and not 0 < trust[0] <= sent:
        trust[0] = sent + lease
    return isinstance(verdict, Renewed)


def keep(
    backend: LockBackend, mine: Claim, lease: float, stop: threading.Event, trust: list[float]
) -> None:
    """Renew as a keeper does, for as long as the lease can be trusted."""
    while time.monotonic() < trust[0] and not stop.wait(lease / 20):
        renew(backend, mine, lease, trust)


def entered_until(what: str, backend: LockBackend, mine: Claim) -> Run:
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


def peeked(backend: LockBackend) -> KeyState | None:
    try:
        return backend.peek("key")
    except BackendUnavailable:
        return None


def parked(backend: LockBackend) -> int:
    state = peeked(backend)
    return state.parked if state else 0


def goes_well(work: Work) -> None:
    assert work.unexpected == []
    assert work.never_went_back()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_nobody_gets_a_key_while_its_holder_trusts_its_lease_and_others_go_on(
    members: Any, role: str, fault: str
) -> None:
    """The holder knows one member only, and its last renewal is the last that member answers."""
    member, prefix = member_of(members, role), new_prefix()
    urls = [each.url for each in members.cluster.members if each is not member]
    scheme = urls[0].partition("://")[0]
    others_url = f"{scheme}://" + ",".join(url.partition("://")[2] for url in urls)
    with (
        Work(members.cluster.url, members.at) as work,
        members.at(member.url, prefix) as backend,
        members.at(others_url, prefix) as others,
    ):
        lease = backend.lease_of(round(SESSION * SECOND)) / SECOND
        mine = claim("a", ttl=lease)
        entered_until("the others are connected", others, claim("warm", key="warm", ttl=lease))
        work.more()
        stop, trust = threading.Event(), [0.0]

        def renewed() -> int:
            """The token; on a machine that stood still the lease may be over, and it is 0."""
            token = entered_until("it is held", backend, mine).token
            threading.Event().wait(SESSION / 6)  # the leader has heard nothing since
            return token if renew(backend, mine, lease, trust) else 0

        token = until("it is renewed", renewed)
        strike(members, fault, member)
        renewals = threading.Thread(target=keep, args=(backend, mine, lease, stop, trust))
        renewals.start()
        try:
            newer = entered_until("another gets the key", others, claim("b", ttl=lease))
            granted = time.monotonic()
        finally:
            stop.set()
            renewals.join()

        work.more()
        assert granted >= trust[0]
        assert newer.token > token
    goes_well(work)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_member_that_comes_back_empty_learns_all_from_the_others(members: Any, role: str) -> None:
    url, prefix = members.cluster.url, new_prefix()
    with members.at(url, prefix, session=10.0) as backend, Work(url, members.at) as work:
        entered_until("it is held", backend, claim("a", ttl=members.lasting))
        park(backend, "b", "c", ttl=members.lasting)
        member = member_of(members, role)
        members.comes_back_empty(member)
        work.more()

        with members.at(member.url, prefix) as there:
            until("it answers", lambda: parked(there) == 2)
            assert [holder.task for holder in there.peek("key").holders] == ["a"]
    goes_well(work)


@pytest.mark.parametrize("fault", ["killed", "cut off silently"])
def test_without_a_majority_nothing_happens_and_with_one_it_goes_on_where_it_was(
    members: Any, fault: str
) -> None:
    with members.at(members.cluster.url, session=10.0) as backend:
        lease = backend.lease_of(round(members.lasting * SECOND)) / SECOND
        mine = claim("a", ttl=lease)
        token = entered_until("it is held", backend, mine).token
        park(backend, "b", "c", ttl=lease)

        for member in members.cluster.members[:2]:
            strike(members, fault, member)
        until("it is known", lambda: refuses(lambda: backend.enter(claim("x", key="x", ttl=1))))
        assert refuses(lambda: backend.enter(claim("d", key="other", ttl=lease)))
        assert refuses(lambda: backend.renew([mine]))
        assert refuses(lambda: backend.leave(claim("e", key="other"), Outcome.DONE))
        members.recover()

        state = until("it answers again", lambda: peeked(backend), timeout=40)
        assert state is not None
        assert [waiting.task for waiting in state.waiting] == ["b", "c"]
        if members.lasting == OnEtcd.lasting:  # a session may have ended meanwhile
            assert [holder.task for holder in state.holders] == ["a"]
            until("it is renewed", lambda: isinstance(verdict_of(backend, mine), Renewed))
        backend.leave(mine, Outcome.DONE)
        wakes = until("the next is called", lambda: woken(backend.reap("key")) or called(backend))
        assert wakes == ["b"]
        assert running(backend.enter(claim("b", wait=QUEUE, ttl=lease))).token > token
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]


def refuses(operation: Callable[[], object]) -> bool:
    try:
        operation()
    except BackendUnavailable:
        return True
    return False


def called(backend: LockBackend) -> list[str]:
    return [grant.task for grant in backend.peek("key").grants]


@pytest.mark.parametrize("started", [ZOOKEEPER], indirect=True)
def test_a_leader_that_nobody_follows_any_more_renews_no_lease(members: Any) -> None:
    """It does not know yet, and it would answer a ``sync``."""
    leader = members.cluster.leader()
    with members.at(leader.url) as backend:
        mine = claim("a", ttl=SESSION / 2)
        running(backend.enter(mine))
        assert isinstance(verdict_of(backend, mine), Renewed)
        members.cut_off(leader, silent=True)

        assert [verdict_of(backend, mine) for _ in range(2)] == [None, None]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("started", [ETCD], indirect=True)
def test_a_holder_that_knows_all_members_keeps_its_lock_though_the_leader_goes(
    members: Any, fault: str
) -> None:
    url = members.cluster.url
    with members.at(url) as backend, Work(url, members.at) as work:
        mine = claim("a", ttl=15)
        entered_until("it is held", backend, mine)
        work.more()

        strike(members, fault, members.cluster.leader())

        assert isinstance(until("it is renewed", lambda: verdict_of(backend, mine)), Renewed)
        work.more()
        assert backend.peek("key").holders[0].task == "a"
    goes_well(work)


@pytest.mark.parametrize("started", [ETCD], indirect=True)
def test_a_renewal_by_a_leader_that_was_replaced_counts_for_nothing(members: Any) -> None:
    """It answers what it was asked while it was paused, before it hears of the others."""
    leader, prefix = members.cluster.leader(), new_prefix()
    others = [member for member in members.cluster.members if member is not leader]
    with members.at(leader.url, prefix) as backend, members.at(others[0].url, prefix) as there:
        mine = claim("a", ttl=SESSION)
        entered_until("it is held", backend, mine)
        leader.pause()
        until("another leads", lambda: leads_one_of(others))
        over = time.monotonic() + SESSION / 2
        until("the next renewal", lambda: time.monotonic() > over)
        resumed = threading.Timer(0.3, leader.resume)
        resumed.start()

        began = time.monotonic()
        verdict = verdict_of(backend, mine)

        resumed.join()
        if isinstance(verdict, Renewed):
            while time.monotonic() < began + SESSION - 0.1:
                assert there.peek("key").holders
        else:
            assert verdict in (NotHeld(), None)


def leads_one_of(members: list[EtcdServer]) -> bool:
    said = [member.ask("maintenance/status") for member in members]
    leaders = {each.get("leader") for each in said}
    return len(leaders) == 1 and leaders <= {each["header"]["member_id"] for each in said}
