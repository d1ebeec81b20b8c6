"""The application of the beats that are compared: a plain task, sent by whichever scheduler.

A message says which beat sent it, and when; the worker writes that down.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import before_task_publish

from tests.services.lab import Journal

#: Seconds from one tick to the next, by the names of the entries.
EVERY = {"each second": 1.0, "each two seconds": 2.0}

TASK = "bench.tick"


def make_app(config: Mapping[str, Any]) -> Celery:
    """*config*: ``celery``, and for a beat its ``name`` and the ``journal`` of its ticks."""
    app = Celery("beats", set_as_current=False)
    app.conf.update(config["celery"])
    app.task(name=TASK, bind=True, shared=False)(note)
    if "name" in config:
        app.conf.beat_schedule = {
            entry: {"task": TASK, "schedule": every, "args": (config["journal"], entry)}
            for entry, every in EVERY.items()
        }
        name = config["name"]

        def sign(headers: dict[str, Any], **_: Any) -> None:
            headers["bench_sent"] = (name, time.monotonic())

        before_task_publish.connect(sign, weak=False)
    return app


def note(self: Any, journal: str, entry: str) -> None:
    """What every tick does."""
    beat, sent = self.request.bench_sent
    told = {"beat": beat, "sent": sent, "due": self.request.get("dlock_due")}
    Journal(Path(journal)).write("ran", entry=entry, **told)


def __getattr__(name: str) -> Any:
    """``scripts.benchmarks.beat_app:app`` for ``celery -A``: built where ``LAB_CONFIG`` is set."""
    if name != "app":
        raise AttributeError(name)
    with _building:
        if "app" not in globals():
            globals()["app"] = make_app(json.loads(Path(os.environ["LAB_CONFIG"]).read_text()))
    return globals()["app"]


_building = threading.Lock()
