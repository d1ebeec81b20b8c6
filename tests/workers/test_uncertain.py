"""A body learns that its lock is uncertain before it is lost, over servers whose way is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_dlock import Lease
from celery_dlock.core.events import Confirmed, Uncertain
from celery_dlock.runtime import forget
from tests.services.desk import Desk, open_desk
from tests.services.ports import free_ports
from tests.services.proxy import Proxy, proxy_to
from tests.services.stores import EVERY, Store
from tests.services.until import until

#: The longest that the ZooKeeper of the tests grants: a slow machine has time for what is left.
TTL = 10.0

SERVERS = [row for row in EVERY if row.id in ("redis", "zookeeper", "etcd", "redlock")]


class Way:
    """A proxy before each server of *url*, the address of which is that of the proxies then."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._proxies: dict[int, Proxy] = {}

        def led(port: re.Match[str]) -> str:
            proxy = stack.enter_context(proxy_to(int(port[1])))
            self._proxies[int(port[1])] = proxy
            return f":{proxy.port}"

        self.url = re.sub(r":(\d+)", led, url)

    def cut(self) -> None:
        """A majority of the servers is gone, for whoever goes by this way."""
        ports = list(self._proxies)[: len(self._proxies) // 2 + 1]
        self._lead(ports, free_ports(1) * len(ports))

    def mend(self) -> None:
        self._lead(list(self._proxies), list(self._proxies))

    def _lead(self, ports: Sequence[int], targets: Sequence[int]) -> None:
        for port, target in zip(ports, targets, strict=True):
            self._proxies[port].target = target
            self._proxies[port].cut()


@pytest.fixture
def way(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Iterator[Way]:
    with ExitStack() as stack:
        yield Way(store.url(request.getfixturevalue, tmp_path), stack)


@pytest.fixture(name="desk")
def a_desk(
    request: pytest.FixtureRequest, store: Store, way: Way, tmp_path: Path
) -> Iterator[Desk]:
    config = store.settings(request, tmp_path)
    with open_desk(**{**config, "dlock_url": way.url, "dlock_ttl": TTL}) as desk:
        yield desk
        forget(desk.app)


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_a_body_sees_that_its_lock_is_uncertain_and_that_it_is_certain_again(
    desk: Desk, way: Way
) -> None:
    seen: list[tuple[bool, bool]] = []

    def see(lease: Lease) -> None:
        seen.append((lease.uncertain, lease.lost))

    @desk.locked("order:{order}", name="charge")
    def charge(order: int, *, lease: Lease) -> None:
        see(lease)
        with desk.patch.context() as patch:
            patch.setattr("celery_dlock.stores.zookeeper.client.ANSWER_TIMEOUT", 0.5)
            way.cut()
            until("it is uncertain", lambda: lease.uncertain or lease.lost)
            see(lease)
            until("it is told", lambda: desk.happened(Uncertain))
        way.mend()
        until("it is certain", lambda: not lease.uncertain)
        see(lease)
        until("it is told", lambda: desk.happened(Confirmed))

    charge.delay(42)
    desk.deliver()

    assert seen == [(False, False), (True, False), (False, False)]
    told = [type(event) for event in desk.events if getattr(event, "key", "") == "order:42"]
    assert told == [Uncertain, Confirmed]
