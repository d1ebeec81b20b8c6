"""Stores whose clients are disturbed while they ask: each with the ways in which that can be done.

Nothing that was answered is forgotten by it: a store that promises less has no history to check.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.chaos.members import EtcdStore, MemberStore, ZooKeeperStore
from tests.chaos.stores import DURABLE
from tests.services.etcd import EtcdServer
from tests.services.postgresql import PostgresqlServer
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis import RedisServer
from tests.services.redis_cluster import RedisCluster, tell
from tests.services.redis_nodes import running_nodes
from tests.services.redis_sentinel import RedisSentinel
from tests.services.require import require
from tests.services.server_process import ServerProcess
from tests.services.until import until
from tests.services.zookeeper import ZooKeeperServer

#: Seconds after which a server has given up a failover that it was asked for.
MANUAL_FAILOVER = 5.0

#: Between which instants something happened.
Struck = list[tuple[int, int]]

Trouble = Callable[[random.Random], Struck]


@dataclass(frozen=True, slots=True)
class Ground:
    """A store, and what may happen to it.

    *repeats*: its driver asks again by itself. *strangers*: others may release a claim that is on
    its way, which on a Redlock takes a part of it only.
    """

    url: str
    troubles: Sequence[Trouble] = ()
    repeats: bool = False
    strangers: bool = True


def _soon(chance: random.Random) -> None:
    """At some instant of a phase, or little later."""
    time.sleep(chance.uniform(0, 0.02))


def _timed(act: Callable[[], object]) -> Struck:
    first = time.monotonic_ns()
    act()
    return [(first, time.monotonic_ns())]


def cuts(proxy: Proxy) -> Trouble:
    """All connections end."""

    def trouble(chance: random.Random) -> Struck:
        _soon(chance)
        return _timed(proxy.cut)

    return trouble


def lost_replies(proxy: Proxy, least: int) -> Trouble:
    """A request of *least* bytes or more is carried out, and not answered."""

    def trouble(chance: random.Random) -> Struck:
        struck: Struck = []

        def matches(request: bytes) -> bool:
            if len(request) < least:
                return False
            struck.append((time.monotonic_ns(),) * 2)
            return True

        _soon(chance)
        proxy.lose_replies(1, matches)
        _soon(chance)
        proxy.lose_replies(0, matches)
        return struck

    return trouble


def killed(server: ServerProcess) -> Trouble:
    """It comes back with all that it has answered."""

    def trouble(chance: random.Random) -> Struck:
        _soon(chance)
        struck = _timed(server.kill)
        server.start()
        return struck

    return trouble


def hung_up(servers: Sequence[RedisServer]) -> Trouble:
    """One of them ends all connections of stores."""

    def trouble(chance: random.Random) -> Struck:
        _soon(chance)
        with chance.choice(servers).client() as admin:
            ours = [c["id"] for c in admin.client_list() if c["cmd"] in ("eval", "evalsha")]
            return _timed(lambda: [admin.client_kill_filter(_id=each) for each in ours])

    return trouble


def scripts_forgotten(servers: Sequence[RedisServer]) -> Trouble:
    """A server has to be told the scripts once more."""

    def trouble(chance: random.Random) -> Struck:
        _soon(chance)
        tell(chance.choice(servers), "SCRIPT", "FLUSH")
        return []

    return trouble


def handed_over(cluster: RedisCluster) -> Trouble:
    """A replica takes over from its master, as an operator asks it to: nothing is lost."""

    def trouble(chance: random.Random) -> Struck:
        _soon(chance)
        replicas = [s for s in cluster.servers if s.info("replication")["role"] == "slave"]
        replica = chance.choice(replicas)

        asked = 0.0

        def taken_over() -> bool:
            nonlocal asked
            if time.monotonic() > asked + MANUAL_FAILOVER:
                tell(replica, "CLUSTER", "FAILOVER")
                asked = time.monotonic()
            return bool(replica.info("replication")["role"] == "master")

        return _timed(lambda: until("it has taken over", taken_over))

    return trouble


def member_killed(store: MemberStore) -> Trouble:
    """The others go on; it is started again, and may not be there yet at the next kill."""

    def trouble(chance: random.Random) -> Struck:
        _soon(chance)
        with store.member_killed(chance.randrange(3)):
            time.sleep(chance.uniform(0, 2))
        return []

    return trouble


def member_paused(store: MemberStore) -> Trouble:
    def trouble(chance: random.Random) -> Struck:
        _soon(chance)
        with store.member_paused(chance.randrange(3)):
            time.sleep(chance.uniform(0, 2))
        return []

    return trouble


#: The shortest request that asks for something, in bytes, on every store.
REQUEST = 60


def _sqlite(stack: ExitStack) -> Ground:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlock-histories-"))
    return Ground(f"sqlite:///{folder}/locks.db")


def _redis(stack: ExitStack) -> Ground:
    server = stack.enter_context(RedisServer(*DURABLE))
    proxy = stack.enter_context(proxy_to(server.port))
    lost = lost_replies(proxy, REQUEST)
    ways = (cuts(proxy), lost, lost, scripts_forgotten([server]), killed(server))
    return Ground(f"redis://127.0.0.1:{proxy.port}/0", ways, repeats=True)


def _sentinel(stack: ExitStack) -> Ground:
    servers = stack.enter_context(RedisSentinel())
    all_of_them = [servers.master]
    ways = (hung_up(all_of_them), scripts_forgotten(all_of_them))
    return Ground(servers.url, ways, repeats=True)


def _cluster(stack: ExitStack) -> Ground:
    servers = stack.enter_context(RedisCluster())
    hangs, forgets = hung_up(servers.servers), scripts_forgotten(servers.servers)
    ways = (hangs, hangs, hangs, forgets, handed_over(servers))
    return Ground(servers.url, ways, repeats=True)


def _postgresql(stack: ExitStack) -> Ground:
    server = stack.enter_context(PostgresqlServer(require("postgresql").parent))
    proxy = stack.enter_context(proxy_to(server.port))
    lost = lost_replies(proxy, REQUEST)
    url = server.url.replace(str(server.port), str(proxy.port))
    return Ground(url, (cuts(proxy), lost, lost, killed(server)), repeats=True)


def _etcd(stack: ExitStack) -> Ground:
    server = stack.enter_context(EtcdServer())
    proxy = stack.enter_context(proxy_to(server.port))
    return Ground(f"etcd://127.0.0.1:{proxy.port}", (cuts(proxy), lost_replies(proxy, REQUEST)))


def _zookeeper(stack: ExitStack) -> Ground:
    server = stack.enter_context(ZooKeeperServer())
    proxy = stack.enter_context(proxy_to(server.port))
    ways = (cuts(proxy), lost_replies(proxy, REQUEST))
    return Ground(f"zookeeper://127.0.0.1:{proxy.port}", ways)


def _members(store: MemberStore) -> Ground:
    return Ground(store.settings["dlock_url"], (member_killed(store), member_paused(store)))


GROUNDS: dict[str, Callable[[ExitStack], Ground]] = {
    "memory": lambda stack: Ground("memory://"),
    "sqlite": _sqlite,
    "redis": _redis,
    "redis+sentinel": _sentinel,
    "redis+cluster": _cluster,
    "redlock": lambda stack: Ground(stack.enter_context(running_nodes(5)).url, strangers=False),
    "postgresql": _postgresql,
    "etcd": _etcd,
    "zookeeper": _zookeeper,
    "etcd-members": lambda stack: _members(EtcdStore(stack)),
    "zookeeper-members": lambda stack: _members(ZooKeeperStore(stack)),
}
