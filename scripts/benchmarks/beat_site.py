"""Two hosts with a beat each, their ways to Redis, and a supervisor for both.

The broker is on another Redis than locks and schedules, so that no tick is lost by the broker.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from scripts.benchmarks.beat_counts import Tick
from tests.chaos.stores import DURABLE
from tests.services.lab import Journal
from tests.services.ports import free_ports
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker

APP = "scripts.benchmarks.beat_app:app"

#: Seconds after which a supervisor starts again what has ended by itself.
RESTART = 1.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to run two beats: what ``-S`` takes, and settings in which ``STORE`` is the URL."""

    name: str
    scheduler: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def celery(self, broker: str, store: str) -> dict[str, Any]:
        own = {name: store if value == "STORE" else value for name, value in self.settings.items()}
        return {**COMMON, "broker_url": broker, **own}


COMMON = {
    "task_ignore_result": True,
    "result_expires": None,  # no entry of Celery's own
    "broker_connection_retry_on_startup": True,
    "worker_enable_remote_control": False,
}


class Beat(Worker):
    """``celery beat`` of one host, behind its own proxies."""

    is_up: ClassVar[bytes] = b"beat: Starting..."

    def __init__(
        self, folder: Path, config: dict[str, Any], name: str, scheduler: str, ways: list[Proxy]
    ) -> None:
        super().__init__(folder, {**config, "name": name}, name, "solo", 1, APP)
        self.name = name
        self.ways = ways
        self.ends = 0
        self._left = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise)
        self._command = [
            *(sys.executable, "-m", "celery", "-A", APP, "beat", "--scheduler", scheduler),
            *("--schedule", str(folder / f"{name}.schedule"), "--loglevel", "INFO"),
        ]

    def supervise(self) -> None:
        """Start it again from now on when it has ended."""
        self._supervisor.start()

    def end(self, number: signal.Signals) -> None:
        """Its host goes: it gets this signal, and is not started again."""
        self._leave()
        if self.process is not None and self.process.poll() is None:
            self.send(number)

    def close(self) -> None:
        self._leave()
        self.kill()

    def cut(self) -> None:
        """Its host has no Redis any more, until it is healed."""
        (nowhere,) = free_ports(1)
        for way in self.ways:
            way.target = nowhere
            way.cut()

    def _leave(self) -> None:
        self._left.set()
        if self._supervisor.is_alive():
            self._supervisor.join()

    def _supervise(self) -> None:
        while not self._left.wait(0.05):
            if self.process is not None and self.process.poll() is not None:
                self.ends += 1
                if not self._left.wait(RESTART):
                    self.kill()
                    self.start(ready=False)


class Site:
    """Two beats of one contestant; the first one that is started leads, where one does."""

    def __init__(self, folder: Path, contestant: Contestant, broker: RedisServer) -> None:
        folder.mkdir()
        self.contestant = contestant
        self.journal = Journal(folder / "journal")
        self.store = RedisServer(*DURABLE)
        self._folder = folder
        self._broker = broker

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Its Redis runs; no beat does so far."""
        with ExitStack() as stack:
            stack.enter_context(self.store)
            self.first, self.second = (self._beat(stack, name) for name in ("first", "second"))
            yield

    def start(self, beat: Beat, *, ready: bool = True) -> None:
        beat.start(ready=ready)
        beat.supervise()

    def ticks(self, entry: str | None = None) -> list[Tick]:
        """Those that were executed."""
        fields = {} if entry is None else {"entry": entry}
        return [
            Tick(each["beat"], each["sent"], each["due"] and datetime.fromisoformat(each["due"]))
            for each in self.journal.read("ran", **fields)
        ]

    def wait_for_ticks(self, count: int) -> None:
        until(f"{self.contestant.name}: ticks", lambda: len(self.ticks()) >= count, timeout=120)

    def heal(self, beat: Beat) -> None:
        beat.ways[0].target, beat.ways[1].target = self._broker.port, self.store.port

    @property
    def ends(self) -> int:
        """How often a beat has ended by itself."""
        return self.first.ends + self.second.ends

    def _beat(self, stack: ExitStack, name: str) -> Beat:
        ways = [stack.enter_context(proxy_to(s.port)) for s in (self._broker, self.store)]
        broker, store = (f"redis://127.0.0.1:{way.port}/0" for way in ways)
        config = {
            "celery": self.contestant.celery(broker, store),
            "journal": str(self._folder / "journal"),
        }
        beat = Beat(self._folder, config, name, self.contestant.scheduler, ways)
        stack.callback(beat.close)
        return beat


def ticks_worker(folder: Path, broker: RedisServer) -> Worker:
    """Who executes the ticks of all sites."""
    celery = {**COMMON, "broker_url": broker.url}
    return Worker(folder, {"celery": celery}, "worker", "threads", 4, APP)
