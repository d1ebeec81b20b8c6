"""Clocks, threads, locks and numbers of chance as every module finds them that is imported later.

``install()`` comes before Celery and the library are imported: they are as they ship, and what they
take for the time, a thread or a nonce is that of the schedule that is played.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from tests.simulation.kernel import BEGINNING, INSTANT, Green, Kernel

_real_monotonic, _real_time = time.monotonic, time.time


def monotonic(*_: Any) -> float:
    return _real_monotonic() if Kernel.current is None else Kernel.current.now


def wall() -> float:
    return _real_time() if Kernel.current is None else BEGINNING + Kernel.current.now


def sleep(seconds: float) -> None:
    # A clock goes on meanwhile, also where what is left of a timeout is a rounding error.
    Kernel.here().wait(max(INSTANT, seconds))


class Lock:
    """One that a green thread may hold while another one runs."""

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0
        self._waiting: deque[Green] = deque()

    def _mine(self, me: object) -> bool:
        return False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = getcurrent()
        while self._depth and not self._mine(me):
            if not blocking:
                return False
            kernel = Kernel.here()
            self._waiting.append(kernel.me())
            if not kernel.wait(None if timeout < 0 else timeout):
                return False
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            while self._waiting:
                Kernel.here().wake(self._waiting.popleft())

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    def _mine(self, me: object) -> bool:
        return self._owner is me


class Condition:
    def __init__(self, lock: Any = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[Green] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        kernel = Kernel.here()
        self._waiting.append(kernel.me())
        self._lock.release()
        try:
            return kernel.wait(timeout)
        finally:
            if kernel.me() in self._waiting:
                self._waiting.remove(kernel.me())
            self._lock.acquire()

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            Kernel.here().wake(self._waiting.pop(0))

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    notifyAll = notify_all  # noqa: N815  # billiard's name for it


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Green] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._waiting:
            Kernel.here().wake(self._waiting.pop())

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            kernel = Kernel.here()
            self._waiting.append(kernel.me())
            kernel.wait(timeout)
        return self._set


class Thread:
    """A green thread of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name, self.daemon = name or "thread", daemon
        self._green: Green | None = None

    def start(self) -> None:
        kernel = Kernel.here()
        process = kernel.me().process
        self._green = kernel.spawn(process, self.run, self.name.removeprefix("celery-dlock-"))

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self._green is not None and not self._green.over

    def join(self, timeout: float | None = None) -> None:
        if self._green is not None and not self._green.over:
            kernel = Kernel.here()
            self._green.waiters.append(kernel.me())
            kernel.wait(timeout)


class SimpleQueue:
    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: list[Green] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            Kernel.here().wake(self._waiting.pop(0))

    def get(self) -> Any:
        while not self._items:
            kernel = Kernel.here()
            self._waiting.append(kernel.me())
            kernel.wait(None)
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Local:
    """``threading.local`` of green threads."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        object.__setattr__(made, "_of_greens", {})
        return made

    def _mine(self) -> dict[str, Any]:
        of_greens: dict[Any, dict[str, Any]] = object.__getattribute__(self, "_of_greens")
        me = getcurrent()
        mine = of_greens.get(me)
        if mine is None:
            if len(of_greens) > 100:
                for gone in [each for each in of_greens if each.dead]:
                    del of_greens[gone]
            mine = of_greens[me] = {}
            type(self).__init__(self)
        return mine

    def __getattr__(self, name: str) -> Any:
        try:
            return self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._mine()[name] = value

    def __delattr__(self, name: str) -> None:
        self._mine().pop(name, None)


class Chance(random.Random):
    """In place of the system's: drawn from the seed of the schedule."""

    def random(self) -> float:
        return random.random()

    def getrandbits(self, k: int) -> int:
        return random.getrandbits(k)

    def seed(self, *_: Any, **__: Any) -> None:
        """It has none."""


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=random.getrandbits(128), version=4)


def install() -> None:
    """From now on in this process, for what is imported from now on."""
    import concurrent.futures.thread  # noqa: F401  # which needs a lock of the system
    import queue

    time.monotonic = time.clock_gettime = monotonic
    time.time, time.sleep = wall, sleep  # type: ignore[assignment]
    os.getpid = lambda: 4711
    sys.modules["_asyncio"] = None  # type: ignore[assignment]  # it has one loop for all greens
    time.time_ns = lambda: int(wall() * 1e9)
    random.SystemRandom = Chance  # type: ignore[misc,assignment]
    uuid.uuid4 = _uuid4
    main = threading.current_thread()
    made: dict[str, Any] = {
        "current_thread": lambda: main,
        "_shutdown": lambda: None,  # it would wait for threads that are none
        "Lock": Lock,
        "RLock": RLock,
        "Condition": Condition,
        "Event": Event,
        "Thread": Thread,
        "local": Local,
        "get_ident": lambda: id(getcurrent()),
    }
    for name, stand_in in made.items():
        setattr(threading, name, stand_in)
    queue.SimpleQueue = SimpleQueue  # type: ignore[misc,assignment]
