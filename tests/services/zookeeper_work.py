"""What goes on while members fail: threads that take turns at keys, and what they were given."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from celery_dlock.core.state import Claim, Outcome, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend
from celery_dlock.testing.contract.words import claim
from tests.services.until import until

#: Seconds that are asked for.
SESSION = 3.0


@contextmanager
def backend_at(url: str, prefix: str = "", session: float = SESSION) -> Iterator[ZooKeeperBackend]:
    options = BackendOptions(prefix=prefix or f"test-{uuid.uuid4().hex}", ttl=session)
    backend = ZooKeeperBackend.from_url(url, options)
    try:
        yield backend
    finally:
        backend.close()


@dataclass
class Work:
    """Threads that take turns at a few keys, each with a store of its own, whatever happens."""

    url: str
    opens: Callable[[str, str], AbstractContextManager[LockBackend]] = backend_at
    keys: int = 3
    prefix: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex}")
    grants: list[tuple[float, str, int]] = field(default_factory=list[tuple[float, str, int]])
    unexpected: list[BaseException] = field(default_factory=list[BaseException])
    _stop: threading.Event = field(default_factory=threading.Event)

    def _work(self, number: int) -> None:
        with self.opens(self.url, self.prefix) as backend:
            for turn in itertools.count():
                if self._stop.is_set():
                    return
                key = f"key {turn % self.keys}"
                try:
                    self._take(backend, claim(f"{number}:{turn}", key=key, ttl=SESSION / 2))
                except BackendUnavailable:
                    pass
                except BaseException as exc:
                    self.unexpected.append(exc)
                    raise
                self._stop.wait(0.05)  # members elect, and others test, on the same processors

    def _take(self, backend: LockBackend, mine: Claim) -> None:
        verdict = backend.enter(mine).verdict
        if isinstance(verdict, Run):
            self.grants.append((time.monotonic(), mine.key, verdict.token))
            backend.leave(mine, Outcome.DONE)

    def __enter__(self) -> Work:
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(4)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int = 20) -> None:
        """Wait for so many grants from now on."""
        goal = len(self.grants) + count
        until("work goes on", lambda: len(self.grants) >= goal or self.unexpected, timeout=60)

    def never_went_back(self) -> bool:
        by_key: dict[str, list[int]] = {}
        for _, key, token in list(self.grants):
            by_key.setdefault(key, []).append(token)
        return all(tokens == sorted(set(tokens)) for tokens in by_key.values())
