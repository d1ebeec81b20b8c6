"""The answer to a release is lost on its way, and the store's client asks again by itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import redis
import redis.connection

from celery_dlock.core.lease import Lease
from celery_dlock.core.state import Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.manager import Keeping, LockManager
from celery_dlock.stores.base import BackendOptions, LockBackend, Wake
from celery_dlock.stores.consensus.optimistic import OptimisticBackend
from celery_dlock.stores.consensus.rows import Commit, Committed
from celery_dlock.stores.etcd.store import EtcdBackend
from celery_dlock.stores.redis.cluster import RedisClusterBackend
from celery_dlock.stores.redis.sentinel import RedisSentinelBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend
from celery_dlock.testing.contract.words import claim, park
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis_nodes import RedisNodes, redlock_url
from tests.services.until import until

pytestmark = pytest.mark.server("redis")

STORES: dict[str, tuple[type[LockBackend], str]] = {
    "redis": (RedisBackend, "redis_server"),
    "sentinel": (RedisSentinelBackend, "redis_sentinel"),
    "cluster": (RedisClusterBackend, "redis_cluster"),
}


def is_leave(request: bytes) -> bool:
    return b"EVALSHA" in request and b"$4\r\ndone\r\n" in request


@contextmanager
def answers_lost(count: int) -> Iterator[list[bytes]]:
    """The next *count* answers to a release come to an end of the connection, and are kept here."""
    lost: list[bytes] = []
    waiting = set[int]()
    connection: Any = redis.connection.AbstractConnection
    send, read = connection.send_packed_command, connection.read_response

    def sends(self: Any, command: Any, *args: Any, **options: Any) -> None:
        if is_leave(b"".join([command] if isinstance(command, bytes) else command)):
            waiting.add(id(self))
        send(self, command, *args, **options)

    def reads(self: Any, *args: Any, **options: Any) -> Any:
        answer = read(self, *args, **options)
        if id(self) in waiting:
            waiting.discard(id(self))
            if len(lost) < count:
                lost.append(answer)
                self.disconnect()
                raise redis.ConnectionError("the answer was lost")
        return answer

    with (
        mock.patch.object(connection, "send_packed_command", sends),
        mock.patch.object(connection, "read_response", reads),
    ):
        yield lost


class Holding:
    """A manager whose task ``a`` holds the key, while ``b`` and ``c`` wait."""

    def __init__(self, backend: LockBackend) -> None:
        self.woken: list[Wake] = []
        self.told: list[str] = []
        self._manager = LockManager(backend, self.woken.extend)
        warm = self._taken("warm")
        self._manager.release(warm, Outcome.DONE)
        self.lease = self._taken("key")
        park(backend, "b", "c")

    def _taken(self, key: str) -> Lease:
        keeping = Keeping(None, lambda term, reason: self.told.append(reason))
        lease = self._manager.acquire([claim("a", key=key, ttl=30)], keeping)
        assert isinstance(lease, Lease)
        return lease

    def release(self) -> None:
        assert self._manager.release(self.lease, Outcome.DONE)

    def is_as_if_the_answer_had_come(self) -> None:
        assert [term.lost for term in self.lease.terms] == [None]
        assert not self.told
        assert [wake.task for wake in self.woken] == ["b"]


@pytest.fixture
def opened() -> Iterator[Callable[[type[LockBackend], str], LockBackend]]:
    with ExitStack() as stack:

        def open_store(store: type[LockBackend], url: str) -> LockBackend:
            backend = store.from_url(url, BackendOptions(prefix=f"lost-{uuid.uuid4().hex}"))
            stack.callback(backend.close)
            return backend

        yield open_store


@pytest.mark.parametrize("name", STORES)
def test_a_release_whose_answer_is_lost_is_no_lost_lock(
    name: str, request: pytest.FixtureRequest, opened: Callable[..., LockBackend]
) -> None:
    store, fixture = STORES[name]
    holding = Holding(opened(store, request.getfixturevalue(fixture).url))

    with answers_lost(1) as lost:
        holding.release()

    holding.is_as_if_the_answer_had_come()
    assert len(lost) == 1


@pytest.mark.parametrize("cut_off", [[0], [1], [0, 1, 2]], ids=["the queue", "a node", "all"])
def test_a_release_that_several_servers_answer_in_vain_is_no_lost_lock(
    redis_nodes: RedisNodes, opened: Callable[..., LockBackend], cut_off: list[int]
) -> None:
    with ExitStack() as stack:
        proxies: list[Proxy] = [
            stack.enter_context(proxy_to(node.port)) for node in redis_nodes[:3]
        ]
        url = redlock_url([proxy.port for proxy in proxies])
        holding = Holding(opened(RedlockBackend, url))
        for number in cut_off:
            proxies[number].lose_replies(1, lambda request: True)

        holding.release()

        holding.is_as_if_the_answer_had_come()
        # A node that a majority does without may be told later.
        until("all were cut off", lambda: all(proxies[number].lost for number in cut_off))


@pytest.mark.parametrize(
    ("store", "fixture"),
    [
        pytest.param(EtcdBackend, "etcd_server", marks=pytest.mark.server("etcd")),
        pytest.param(ZooKeeperBackend, "zookeeper_server", marks=pytest.mark.server("zookeeper")),
    ],
)
def test_a_release_whose_fate_is_unknown_is_said_again_and_is_no_lost_lock(
    store: type[OptimisticBackend],
    fixture: str,
    request: pytest.FixtureRequest,
    opened: Callable[..., OptimisticBackend],
) -> None:
    backend = opened(store, request.getfixturevalue(fixture).url)
    holding = Holding(backend)
    # Given a commit whose answer is lost
    commit = backend._rows.commit
    unanswered: list[Committed] = []

    def commits(asked: Commit) -> Committed | None:
        committed = commit(asked)
        if committed is None or unanswered:
            return committed
        unanswered.append(committed)
        raise BackendUnavailable("the answer was lost")

    with mock.patch.object(backend._rows, "commit", commits):
        # When it was the one that gives the key back
        with pytest.raises(BackendUnavailable):
            holding.release()
        # Then it is asked again in the background
        until("the next one is woken", lambda: holding.woken)
    holding.is_as_if_the_answer_had_come()
