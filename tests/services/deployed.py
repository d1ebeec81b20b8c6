"""The lab's app with the task ``work``, in the version of its project that ``version`` names."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import FullJitter, Limit, LockedTask, Ordered, Queue, Reschedule, Shared
from tests.services import lab
from tests.services.lab import Journal, hold_at

KEY = "order:{order}"

#: Bodies of calls from these numbers on stay until the test lets "middle" go, and then, in a worker
#: that ``holds``, until it lets "late" go.
MIDDLE, LATE = 8, 16


def _three(order: str, number: int) -> int:
    """What a function says for the limit of a call."""
    return 3


VERSIONS: dict[str, dict[str, Any]] = {
    "alone": {"key": KEY},
    "three": {"key": Limit(KEY, 3)},
    "by function": {"key": Limit(KEY, _three)},
    "shared": {"key": Shared(KEY)},
    "reschedule": {
        "key": KEY,
        "on_contention": Reschedule(backoff=FullJitter(base=0.05, cap=0.2)),
    },
    "keep": {"key": KEY, "on_contention": Queue(keep=True)},
    "ordered": {"key": KEY, "on_contention": Ordered()},
    "another key": {"key": [KEY, "customer:{order}"]},
    "another name": {"key": KEY, "name": "work anew"},
    "many options": {
        "key": [Limit(KEY, 1, cooldown=0.01), Shared("orders")],
        "on_contention": Queue(max_waiting=100, overflow="drop_oldest", max_wait=600),
        "unique": "done",
        "reserve": "retry",
    },
}


def _define(app: Celery, folder: Path, version: str, *, holds: bool) -> None:
    journal = Journal(folder / "journal")

    def work(order: str, number: int) -> int:
        about = {"id": number, "order": order, "version": version}
        journal.write("start", **about)
        if number >= MIDDLE:
            hold_at(folder, "middle")
        if holds and number >= LATE:
            hold_at(folder, "late")
        journal.write("end", **about)
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
        app: Celery = lab.app
        if "work" not in app.tasks:
            config = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())
            _define(app, Path(config["folder"]), config["version"], holds=config["holds"])
    return app
