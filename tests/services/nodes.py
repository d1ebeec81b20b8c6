"""Nodes of pytest-celery whose containers are processes of ours: no Docker engine is needed.

``CeleryTestNode``, its clusters and ``celery_setup`` ask a container for a few things only: its
name, its logs, where it is reached, and to be killed and started again. A process can do that.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil
from pytest_celery import CeleryTestCluster, CeleryTestContainer, CeleryTestNode, CeleryTestWorker

from tests.services.until import until


class Process(Protocol):
    """What a server or a worker of ``tests/services`` is."""

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...


class ProcessContainer(CeleryTestContainer):
    """The container of a *process* that runs; *url* is where Celery finds it, if it is a server."""

    def __init__(self, name: str, process: Process, url: str = "", log: Path | None = None) -> None:
        self._name, self._process, self._url, self._log = name, process, url, log
        self._runs = True

    @property
    def name(self) -> str:
        return self._name

    @property
    def id(self) -> str:
        return f"{self._process.pid:012}"

    @property
    def status(self) -> str:
        return "running" if self._runs else "exited"

    @property
    def celeryconfig(self) -> dict[str, str]:
        return {"url": self._url, "host_url": self._url}

    def ready(self) -> bool:
        return self._runs

    def logs(self) -> str:
        return self._log.read_text(errors="replace") if self._log else ""

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """As a container: the signal goes to its first process, and nothing of it outlives that."""
        number = _number(signal)
        os.kill(self._process.pid, number)
        if number in _ENDING:
            until("its first process has ended", self._has_ended)
            self._process.kill()
            self._runs = False

    def _has_ended(self) -> bool:
        try:
            return psutil.Process(self._process.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def restart(self, timeout: float = 10.0) -> None:
        """Start again where it was; it is killed if it runs."""
        self._process.kill()
        self._process.start()
        self._runs = True

    def reload(self) -> None:
        """There is no copy of its state here that could be old."""


class WorkerContainer(ProcessContainer):
    """The container of a worker."""

    def worker_name(self) -> str:
        return self.name

    def worker_queue(self) -> str:
        return "celery"


class WorkerNode(CeleryTestWorker):
    """A worker by the name that ``Worker`` gives it."""

    def hostname(self) -> str:
        return f"{self.worker_name}@lab"


class LockStoreContainer(CeleryTestContainer):
    """A file, or a server that other tests use too: nothing to be killed by this one."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def name(self) -> str:
        return self._url.partition(":")[0]

    @property
    def celeryconfig(self) -> dict[str, str]:
        return {"url": self._url, "host_url": self._url}

    def ready(self) -> bool:
        return True


class LockStoreNode(CeleryTestNode):
    """Where an application keeps its locks: *settings* are its ``dlock_*``."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(LockStoreContainer(settings["dlock_url"]))
        self.settings = settings


class LockStoreCluster(CeleryTestCluster):
    """The lock stores of an application."""


_ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)


def _number(name: str | int) -> signal.Signals:
    return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)
