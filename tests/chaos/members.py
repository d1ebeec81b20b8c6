"""Lock stores of several members, of which some fail while the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar, Protocol

from tests.chaos.plan import Kind
from tests.chaos.stores import DURABLE, Store
from tests.services.etcd import EtcdServer
from tests.services.etcd_cluster import EtcdCluster
from tests.services.redis import RedisServer
from tests.services.redis_nodes import running_nodes
from tests.services.zookeeper import ZooKeeperServer
from tests.services.zookeeper_ensemble import ZooKeeperEnsemble


class Member(Protocol):
    """One server; it forgets nothing that it has said it has written."""

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class MemberStore(Store):
    """*members* may fail; with so many of them paused as *most* says, the store is.

    *again* starts one that was killed, and does not wait for it.
    """

    kinds: ClassVar[tuple[Kind, ...]] = (Kind.KILL_MEMBER, Kind.PAUSE_MEMBER, Kind.PAUSE_STORE)

    def __init__(
        self, url: str, members: Sequence[Member], most: int, again: Callable[[Any], None]
    ) -> None:
        self._url = url
        self._members = members
        self._most = most
        self._again = again
        self._struck: set[int] = set()

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"dlock_url": self._url}

    def member_killed(self, target: int) -> AbstractContextManager[None]:
        return self._once(target, lambda member: member.kill(), self._again)

    def member_paused(self, target: int) -> AbstractContextManager[None]:
        return self._once(target, lambda member: member.pause(), lambda member: member.resume())

    @contextmanager
    def paused(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target in range(self._most):
                stack.enter_context(self.member_paused(target))
            yield

    def _once(self, target: int, fail: Any, recover: Any) -> AbstractContextManager[None]:
        """A member that another fault has struck already is left to it."""
        number = target % len(self._members)
        return nullcontext() if number in self._struck else self._failed(number, fail, recover)

    @contextmanager
    def _failed(self, number: int, fail: Any, recover: Any) -> Iterator[None]:
        self._struck.add(number)
        fail(self._members[number])
        try:
            yield
        finally:
            recover(self._members[number])
            self._struck.discard(number)


class ZooKeeperStore(MemberStore):
    def __init__(self, stack: ExitStack) -> None:
        ensemble = stack.enter_context(ZooKeeperEnsemble())
        super().__init__(ensemble.url, ensemble.members, 2, ZooKeeperServer.begin)


class EtcdStore(MemberStore):
    def __init__(self, stack: ExitStack) -> None:
        cluster = stack.enter_context(EtcdCluster())
        super().__init__(cluster.url, cluster.members, 2, EtcdServer.begin)


class RedlockStore(MemberStore):
    """The first node, which has the queue, stays: without it tasks are rescheduled, and a finished
    one may run again.
    """

    def __init__(self, stack: ExitStack) -> None:
        nodes = stack.enter_context(running_nodes(5, *DURABLE))
        super().__init__(nodes.url, nodes[1:], 3, RedisServer.begin)


MEMBERS = {"zookeeper": ZooKeeperStore, "etcd": EtcdStore, "redlock": RedlockStore}
