"""How many times a second one client can take and free a lock."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from redis import Redis

from celery_dlock.backends.base import BackendOptions, LockBackend
from celery_dlock.core.state import Claim, Outcome, Run
from celery_dlock.registry import open_backend
from tests.benchmarks.measure import Measured, in_turns

TTL = 30_000_000


def rate(cycle: Callable[[], None], times: int) -> float:
    for _ in range(times // 10):  # scripts are loaded, connections open
        cycle()
    started = time.perf_counter()
    for _ in range(times):
        cycle()
    return times / (time.perf_counter() - started)


def ours(backend: LockBackend) -> Callable[[], None]:
    """One cycle through the store's own interface: enter, and leave without a trace."""

    def cycle() -> None:
        claim = Claim("order:1", "task:0:0", uuid.uuid4().hex, TTL)
        assert isinstance(backend.enter(claim).verdict, Run)
        backend.leave(claim, Outcome.OVER)

    return cycle


def redis(url: str, times: int = 2000, rounds: int = 5) -> list[Measured]:
    """Against the least one can send, ``SET NX PX`` and a script that frees what is one's own."""
    client = Redis.from_url(url)
    release = client.register_script(
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
    )

    def floor() -> None:
        token = uuid.uuid4().hex
        assert client.set("floor", token, nx=True, px=30_000)
        release(keys=["floor"], args=[token])

    def redis_py() -> None:
        lock = client.lock("redis-py", timeout=30)
        assert lock.acquire(blocking=False)
        lock.release()

    backend = ours(open_backend(url, BackendOptions()))
    contestants = {
        "SET NX PX, and Lua to free": lambda: rate(floor, times),
        "celery_dlock, with token, rules and renewal": lambda: rate(backend, times),
        "redis-py Lock": lambda: rate(redis_py, times),
    }
    measured = in_turns(contestants, rounds)
    client.close()
    return measured


def sqlite(folder: Path, times: int = 300, rounds: int = 5) -> list[Measured]:
    """Against two transactions that write one row each, as durable as ours."""
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE floor (key, owner)"
    )

    def floor() -> None:
        connection.execute("INSERT INTO floor VALUES ('order:1', 'me')")
        connection.execute("DELETE FROM floor")

    backend = ours(open_backend(f"sqlite:///{folder / 'locks.db'}", BackendOptions()))
    measured = in_turns(
        {
            "two transactions of one row": lambda: rate(floor, times),
            "celery_dlock": lambda: rate(backend, times),
        },
        rounds,
    )
    connection.close()
    return measured
