"""Orders whose payments are kept in Redis, with a fence."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Claim, Mode
from tests.services.redis import RedisServer

Connect = Callable[..., Any]


@pytest.fixture
def connect(redis_server: RedisServer) -> Iterator[Connect]:
    """Open clients of one server."""
    opened: list[Any] = []

    def connect(port: int = redis_server.port, **options: Any) -> Any:
        opened.append(redis.Redis(port=port, **options))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


@pytest.fixture(params=[False, True], ids=["bytes", "decoded"])
def client(connect: Connect, request: pytest.FixtureRequest) -> Any:
    return connect(decode_responses=request.param)


@pytest.fixture
def order() -> str:
    """A key of this test's own."""
    return f"order:{uuid.uuid4().hex}"


def term(
    key: str, token: int, nonce: str = "n", slot: int = 0, mode: Mode = Mode.EXCLUSIVE
) -> Term:
    claim = Claim(key, task="t:0:0", nonce=nonce, ttl=30_000_000, mode=mode)
    return Term(claim, slot, token, 0.0, monotonic=lambda: 0.0)


def lease(key: str, token: int = 1, nonce: str = "n", **more: Any) -> Lease:
    return Lease((term(key, token, nonce, **more),), "strict")


def paying(order: str, amount: int = 1) -> Callable[[Any], None]:
    def pay(pipe: Any) -> None:
        paid = int(pipe.get(f"{{{order}}}:paid") or 0)
        pipe.multi()
        pipe.set(f"{{{order}}}:paid", paid + amount, ex=600)

    return pay


def paying_blindly(order: str) -> Callable[[Any], None]:
    """It reads nothing, so nothing of the order's is watched but the fence."""

    def pay(pipe: Any) -> None:
        pipe.multi()
        pipe.incr(f"{{{order}}}:paid")
        pipe.expire(f"{{{order}}}:paid", 600)

    return pay


def paid(client: Any, order: str) -> int:
    return int(client.get(f"{{{order}}}:paid") or 0)


def ours(client: Any, order: str) -> list[str]:
    names = client.scan_iter(match=f"dlock_*{order}*", count=10_000)
    return sorted(name.decode() if isinstance(name, bytes) else name for name in names)
