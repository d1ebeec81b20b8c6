"""The lab's app with the task ``work``, as two versions of a project define it.

``version`` in the worker's configuration names one of ``VERSIONS``. A body that runs in a worker
with ``holds`` stays until the test lets that go.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import FullJitter, Limit, LockedTask, Queue, Reschedule, Shared
from tests.services import lab
from tests.services.lab import Journal, hold_at

KEY = "order:{order}"


def at_once(order: str, number: int = 0) -> int:
    """What a function says for the limit of a call."""
    return 3


_SOON = Reschedule(backoff=FullJitter(base=0.05, cap=0.2))

VERSIONS: dict[str, dict[str, Any]] = {
    "alone": {"key": KEY},
    "three at once": {"key": Limit(KEY, 3)},
    "as many as a function says": {"key": Limit(KEY, at_once)},
    "reads": {"key": Shared(KEY)},
    "rescheduled": {"key": KEY, "on_contention": _SOON},
    "kept": {"key": KEY, "on_contention": Queue(keep=True)},
    "ordered": {"key": KEY, "on_contention": Queue(ordered="publish")},
    "two keys": {"key": [KEY, "customer:{order}"]},
    "beside its old name": {"key": KEY, "name": "renamed"},
    "all options": {
        "key": Limit(KEY, 1, cooldown=0.01),
        "parents": "orders",
        "on_contention": Queue(max_waiting=100, overflow="drop_oldest"),
        "unique": "done",
        "reserve": "retry",
    },
}


def _define(app: Celery, folder: Path, version: str, holds: str | None) -> None:
    journal = Journal(folder / "journal")

    def work(order: str, number: int = 0) -> int:
        journal.write("start", order=order, number=number, version=version)
        if holds is not None:
            hold_at(folder, holds)
        journal.write("end", order=order, number=number, version=version)
        return number

    options = {"on_contention": Queue(), **VERSIONS[version]}
    names = {"work", options.pop("name", "work")}
    given = {f"lock_{name}": value for name, value in options.items()}
    for name in names:
        app.task(name=name, base=LockedTask, shared=False, acks_late=True, **given)(work)


_building = threading.Lock()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    with _building:
        app = lab.app
        if "work" not in app.tasks:
            config = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())
            _define(app, Path(config["folder"]), config["version"], config.get("holds"))
    return app
