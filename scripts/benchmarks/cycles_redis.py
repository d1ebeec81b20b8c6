"""Redis: one node against the least one can send, and against the peers; five nodes likewise."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, closing
from typing import Any

import redis_lock
from pottery import Redlock as PotteryLock
from redis import Redis
from redlock import Redlock as RedlockPy

from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redlock.store import RedlockBackend
from scripts.benchmarks.cycles import Cycle, compare, ours, store
from scripts.benchmarks.fan_out import BareFanOut
from scripts.benchmarks.measure import Measured
from tests.services.redis_nodes import redlock_url, running_nodes

SECONDS = 30


def floor(client: Redis) -> Cycle:
    """``SET NX PX``, and a script that frees what is one's own."""
    release = client.register_script(
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
    )

    def cycle() -> None:
        token = uuid.uuid4().hex
        assert client.set("floor", token, nx=True, px=SECONDS * 1000)
        release(keys=["floor"], args=[token])

    return cycle


def redis_py(client: Redis) -> Cycle:
    def cycle() -> None:
        lock = client.lock("redis-py", timeout=SECONDS)
        assert lock.acquire(blocking=False)
        lock.release()

    return cycle


def python_redis_lock(client: Redis) -> Cycle:
    def cycle() -> None:
        lock = redis_lock.Lock(client, "python-redis-lock", expire=SECONDS)
        assert lock.acquire(blocking=False)
        lock.release()

    return cycle


def pottery(clients: list[Redis]) -> Cycle:
    def cycle() -> None:
        lock = PotteryLock(key="pottery", masters=set(clients), auto_release_time=SECONDS)
        assert lock.acquire(blocking=False)
        lock.release()

    return cycle


def redlock_py(clients: list[Redis]) -> Cycle:
    manager: Any = RedlockPy(clients)

    def cycle() -> None:
        lock = manager.lock("redlock-py", SECONDS * 1000)
        assert lock
        manager.unlock(lock)

    return cycle


def redis_cycles(url: str, times: int = 2000, rounds: int = 5) -> list[Measured]:
    """One node; the first is the floor."""
    with closing(Redis.from_url(url)) as client, closing(store(url)) as backend:
        contestants = {
            "SET NX PX, and Lua to free": floor(client),
            "celery_dlock, with token, rules and renewal": ours(backend),
            "redis-py Lock": redis_py(client),
            "python-redis-lock": python_redis_lock(client),
            "redlock-py": redlock_py([client]),
            "pottery": pottery([client]),
        }
        return compare(contestants, times, rounds)


def redlock_cycles(times: int = 500, rounds: int = 5) -> list[Measured]:
    """Five nodes, against one node of the same store and against the peers on five."""
    with ExitStack() as stack:
        nodes = stack.enter_context(running_nodes(5))
        clients = [stack.enter_context(closing(node.client())) for node in nodes]
        one = stack.enter_context(closing(store(nodes[0].url)))
        ports = [node.port for node in nodes]
        five = stack.enter_context(closing(store(redlock_url(ports))))
        prefix = f"bench-{uuid.uuid4().hex}"
        raising = RedlockBackend.from_url(redlock_url(ports), BackendOptions(prefix=prefix))
        with closing(raising):
            ours(raising)()
        contestants: dict[str, Cycle] = {
            "celery_dlock, redis:// on one": ours(one),
            "the same requests on bare sockets, five": stack.enter_context(
                closing(BareFanOut(ports, prefix))
            ),
            "celery_dlock, redlock:// on five": ours(five),
            "redlock-py on five": redlock_py(clients),
            "pottery on five": pottery(clients),
        }
        return compare(contestants, times, rounds)
