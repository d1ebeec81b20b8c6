"""Independent Redis servers, as the nodes of a Redlock: nobody copies anything to anybody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.services.redis import RedisServer
from tests.services.require import require

NODES = 5


class RedisNodes(list[RedisServer]):
    """Some servers."""

    @property
    def url(self) -> str:
        return redlock_url([node.port for node in self])


def redlock_url(ports: Sequence[int]) -> str:
    """The URL of nodes on loopback; the first has the queue."""
    return f"redlock://{','.join(f'127.0.0.1:{port}' for port in ports)}/0"


@contextmanager
def running_nodes(count: int, *options: str) -> Iterator[RedisNodes]:
    """Servers of one's own, to be killed, paused and started again."""
    require("redis")
    with ExitStack() as stack:
        nodes = RedisNodes(RedisServer(*options) for _ in range(count))
        for node in nodes:
            stack.callback(node.stop)
            node.begin()
        for node in nodes:
            node.wait()
        yield nodes


@pytest.fixture(scope="session")
def redis_nodes() -> Iterator[RedisNodes]:
    """Shared by a run: a test takes a prefix of its own, and kills nobody."""
    with running_nodes(NODES) as nodes:
        yield nodes


@pytest.fixture
def own_redis_nodes(request: pytest.FixtureRequest) -> Iterator[RedisNodes]:
    """Five, or as many as the parameter says."""
    with running_nodes(getattr(request, "param", NODES)) as nodes:
        yield nodes
