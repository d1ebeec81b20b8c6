"""The application that hostile messages are sent to: one task for each policy, or plain tasks.

``LAB_CONFIG`` names a file with Celery's configuration, the folder of the journal, and whether the
tasks are ``plain``. Both kinds have the same names, so both kinds of workers get the same messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import (
    Debounce,
    FullJitter,
    Limit,
    LockedTask,
    Ordered,
    Queue,
    Replace,
    Reschedule,
    Skip,
    Wait,
)
from tests.services.lab import Journal

SOON = Reschedule(backoff=FullJitter(base=0.05, cap=0.2))


def key_that_raises(order: str, number: int = 0) -> str:
    """The key of a project whose function has a defect."""
    if number < 0:
        raise KeyError("id")
    return f"callable:{order}"


LOCKS: Mapping[str, Mapping[str, Any]] = {
    "reschedules": {"on_contention": SOON},
    "queues": {"on_contention": "queue"},
    "keeps": {"on_contention": Queue(keep=True, max_wait=5), "reserve": "retry"},
    "ordered": {"on_contention": Ordered(max_wait=5)},
    "limited": {
        "on_contention": Queue(max_waiting=20, overflow="drop_newest"),
        "key": Limit("limited:{order}", 2),
    },
    "replaces": {"on_contention": Replace()},
    "newest": {"on_contention": Replace(running=True)},
    "skips": {"on_contention": Skip()},
    "waits": {"on_contention": Wait(timeout=0.1)},
    "unique": {"on_contention": "queue", "unique": "done"},
    "started": {"on_contention": SOON, "unique": "start"},
    "debounced": {"unique": Debounce(0.2, max_delay=1.0)},
    "computed": {"on_contention": "queue", "key": key_that_raises},
    "several": {"on_contention": "queue", "key": ["order:{order}", "number:{number}"]},
}


def make_app(config: Mapping[str, Any]) -> Celery:
    app = Celery("hostile", set_as_current=False)
    app.conf.update(config["celery"])
    journal = Journal(Path(config["folder"]) / "journal")
    for name, lock in LOCKS.items():
        options = {"lock_key": f"{name}:{{order}}"}
        options |= {f"lock_{option}": value for option, value in lock.items()}
        _define(app, name, {} if config["plain"] else {"base": LockedTask, **options}, journal)
    return app


def _define(app: Celery, name: str, options: Mapping[str, Any], journal: Journal) -> None:
    @app.task(name=name, shared=False, ignore_result=True, **options)
    def body(order: str, number: int = 0) -> None:
        journal.write("ran", task=name, order=order, number=number)


def __getattr__(name: str) -> Any:
    """``tests.services.hostile_tasks:app`` for ``celery -A``."""
    if name != "app":
        raise AttributeError(name)
    app = make_app(json.loads(Path(os.environ["LAB_CONFIG"]).read_text()))
    globals()["app"] = app
    return app
