"""The words in which the contract speaks: a store under test, and claims in seconds."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import pytest

from celery_dlock.core.state import Claim, EnterVerdict, Mode, Run, WaitMode
from celery_dlock.stores.base import BackendOptions, LockBackend, Reply, Swept
from celery_dlock.testing.project import ManualClock

SECOND = 1_000_000
DAY = 86_400.0
QUEUE = WaitMode.QUEUE
ENQUEUE = WaitMode.ENQUEUE
PLACE = WaitMode.PLACE
SHARED = Mode.SHARED
ANY_BYTES = bytes(range(256)) * 400

#: Seconds for what threads do at once.
DEADLINE = 60.0
T = TypeVar("T")


class StoreUnderTest:
    """The fixtures of the contract; ``backend_class`` and ``url`` come from the subclass."""

    backend_class: ClassVar[type[LockBackend]]

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def options(self, clock: ManualClock) -> BackendOptions:
        return BackendOptions(prefix=f"contract-{uuid.uuid4().hex}", clock=clock)

    @pytest.fixture
    def backend(self, url: str, options: BackendOptions) -> Iterator[LockBackend]:
        backend = self.backend_class.from_url(url, options)
        yield backend
        backend.close()

    @pytest.fixture
    def stranger(self, url: str, options: BackendOptions) -> Iterator[LockBackend]:
        """The store as an application with a similar prefix has it."""
        stranger = self.backend_class.from_url(
            url, replace(options, prefix=f"{options.prefix}:key")
        )
        yield stranger
        stranger.close()


def claim(
    task: str,
    nonce: str = "1",
    *,
    key: str = "key",
    ttl: float = 10,
    patience: float = 30,
    done_ttl: float = 3600,
    gives_up: float = 0,
    **others: Any,
) -> Claim:
    """A claim of *task*, its durations in seconds; *others* as in Claim. One with a limit is
    LIMITED.
    """
    if "limit" in others:
        others.setdefault("mode", Mode.LIMITED)
    return Claim(
        key,
        task,
        nonce,
        ttl=round(ttl * SECOND),
        patience=round(patience * SECOND),
        done_ttl=round(done_ttl * SECOND),
        gives_up=round(gives_up * SECOND),
        **others,
    )


def running(reply: Reply[EnterVerdict]) -> Run:
    """The verdict, which must be that the task runs."""
    assert isinstance(reply.verdict, Run), reply
    return reply.verdict


def woken(reply: Reply[Any] | Swept) -> list[str]:
    """The tasks whose messages are now to be published."""
    return [wake.task for wake in reply.wakes]


def park(backend: LockBackend, *tasks: str, **others: Any) -> None:
    """Let each of *tasks* leave its name as a message in the queue of the key."""
    for task in tasks:
        reply = backend.enter(claim(task, wait=QUEUE, **others), f"message of {task}".encode())
        assert not isinstance(reply.verdict, Run), reply


def at_once(threads: int, work: Callable[[int], T]) -> list[T]:
    """What *work* returns in each of so many *threads*, which start together."""
    barrier = threading.Barrier(threads)

    def start(number: int) -> T:
        barrier.wait(DEADLINE)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(start, range(threads), timeout=DEADLINE))


def listed_keys(backend: LockBackend, limit: int = 100, *, waiting: bool = False) -> list[str]:
    """All keys, in the order of their names."""
    return sorted(set(pages_of(backend, limit, waiting=waiting)))


def pages_of(backend: LockBackend, limit: int, *, waiting: bool = False) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = backend.keys(cursor, limit, waiting=waiting)
        found += page.keys
        cursor = page.cursor
    return found
