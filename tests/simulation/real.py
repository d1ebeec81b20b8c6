"""The stage on which real workers play a scenario, over RabbitMQ."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from celery import Celery

from tests.services.brokers import close, over_rabbitmq, queues_of
from tests.services.lab import Journal, hold_at
from tests.services.proxy import proxy_to
from tests.services.rabbitmq import RabbitMQServer
from tests.services.until import until
from tests.services.worker import Worker
from tests.simulation import stage
from tests.simulation.scenarios import Scenario


class Real(stage.Stage):
    """Its workers reach *server* through a proxy, which may cut them off."""

    def __init__(self, scenario: Scenario, server: RabbitMQServer, folder: Path) -> None:
        self._open = ExitStack()
        self._proxy = self._open.enter_context(proxy_to(server.port))
        self._folder = folder
        self._crew = ("prefork" if scenario.prefork else "threads", scenario.slots)
        (folder / "results").mkdir()
        celery = {
            **over_rabbitmq(server.url),
            "result_backend": f"file://{folder / 'results'}",
            "dlock_url": f"sqlite:///{folder / 'locks.db'}",
            "worker_prefetch_multiplier": scenario.prefetch,
            "worker_enable_remote_control": True,
            **scenario.conf,
        }
        self.app = make_app(folder, celery)
        self._open.callback(close, self.app)
        there = server.url.replace(str(server.port), str(self._proxy.port))
        self._config = {"folder": str(folder), "celery": {**celery, "broker_url": there}}
        self._journal = Journal(folder / "journal")
        self._workers: list[Worker] = []

    def close(self) -> None:
        self._open.close()

    def notes(self) -> Sequence[Mapping[str, Any]]:
        return self._journal.read()

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            if self._crew[0] == "threads":  # what they ask of its loop is done as that wakes up
                self.app.control.broadcast("ping")
            return condition()

        until(lambda: f"{what}: {self.notes()}", holds)

    def go(self, *names: str) -> None:
        for name in names:
            (self._folder / f"go-{name}").touch()

    def start(self) -> None:
        name, app = f"worker{len(self._workers)}", f"{__name__}:app"
        worker = Worker(self._folder, self._config, name, *self._crew, app)
        self._workers.append(self._open.enter_context(worker))

    def kill_body(self, name: str) -> None:
        os.kill(self._journal.read("began", id=name)[-1]["pid"], signal.SIGKILL)

    def kill(self, number: int = 0) -> None:
        self._workers[number].send(signal.SIGKILL)

    def disconnect(self) -> None:
        self._proxy.cut()

    def revoke(self, name: str, *, terminate: bool = False) -> None:
        control = self.app.control
        control.revoke(name, terminate=terminate)
        self.wait("it knows", lambda: name in str(control.inspect(timeout=0.2).revoked()))

    def stop(self) -> None:
        for worker in self._alive():
            worker.send(signal.SIGTERM)
        with self.app.connection_for_read() as connection:
            self._nobody_consumes(connection, self.app.conf.task_default_queue)

    def stop_cold(self) -> None:
        self._idle()
        for worker in self._alive():
            worker.send(signal.SIGQUIT)

    def gone(self) -> None:
        self.wait("all have ended", lambda: not self._alive())

    def _idle(self) -> None:
        """Return when the worker waits for something to do.

        Celery speaks to the broker where it handles SIGQUIT, and waits for itself for ever if it
        was speaking to it then; it had, between the two answers, a whole turn of its loop.
        """
        for _ in range(2):
            self.wait("it answers", lambda: bool(self.app.control.ping(timeout=1.0, limit=1)))

    def _alive(self) -> list[Worker]:
        return [each for each in self._workers if each.process and each.process.poll() is None]

    def left(self) -> list[list[Any]]:
        found = []
        with self.app.connection_for_read() as connection:
            for queue in queues_of(self.app):
                self._nobody_consumes(connection, queue)
                while message := connection.default_channel.basic_get(queue, no_ack=True):
                    found.append([message.headers["id"], message.delivery_info["redelivered"]])
        return found

    def _nobody_consumes(self, connection: Any, queue: str) -> None:
        """Wait for that: what a worker that has ended had is there again by then."""
        declare = functools.partial(connection.default_channel.queue_declare, queue, passive=True)
        self.wait(f"nobody consumes {queue}", lambda: not declare().consumer_count)


def make_app(folder: Path, celery: Mapping[str, Any]) -> Celery:
    """In each process that a scenario is played by."""
    app = Celery("real", set_as_current=False)
    app.conf.update(celery)
    journal = Journal(folder / "journal")
    stage.register(app, journal.write, lambda name: hold_at(folder, name))
    return app


def __getattr__(name: str) -> Any:
    """``app`` for ``celery -A``: built where ``LAB_CONFIG`` is set."""
    if name != "app":
        raise AttributeError(name)
    if "app" not in globals():
        config = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())
        folder = Path(config["folder"])
        stage.watch(Journal(folder / "journal").write)
        globals()["app"] = make_app(folder, config["celery"])
    return globals()["app"]
