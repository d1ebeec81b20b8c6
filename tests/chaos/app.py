"""The application that a campaign's workers run: one body, waiting in three different ways."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import FullJitter, Lease, LockedTask, Queue, Reschedule
from celery_dlock.core.events import Event, Rescheduled, Woken
from tests.chaos.resource import Resource

logger = logging.getLogger("tests.chaos")


def note(event: Event) -> None:
    """A sink: whatever the library publishes is in the worker's log."""
    if isinstance(event, Woken | Rescheduled):
        subject = event.subject
        logger.warning("Task %s[%s] published", subject.task_name, subject.task_id)


WAYS: Mapping[str, dict[str, Any]] = {
    "queued": {"lock_on_contention": Queue()},
    "slotted": {"lock_on_contention": Queue(), "lock_limit": 2},
    "rescheduled": {"lock_on_contention": Reschedule(backoff=FullJitter(base=0.1, cap=1.0))},
}


def make_app(config: Mapping[str, Any]) -> Celery:
    """*config*: ``folder``, ``celery`` (its configuration), ``task`` (options of its tasks)."""
    folder = Path(config["folder"])
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # where a campaign may have put a store of its own
    app = Celery("chaos", set_as_current=False)
    app.conf.update(config["celery"])
    resource = Resource(folder)

    def body(self: Any, key: str, steps: list[float], retries: int, *, lease: Lease) -> None:
        task, attempt = self.request.id, self.request.retries
        who = (uuid.uuid4().hex, task, attempt)
        resource.look(*who, lease)
        for step in steps:
            time.sleep(step)
            resource.look(*who, lease)
        if attempt < retries:
            raise self.retry(countdown=0.1)
        resource.change(task, lease)
        resource.look(*who, lease, ending=True)

    for name, way in WAYS.items():
        options = {"base": LockedTask, "bind": True, "shared": False, "lock_key": "{key}"}
        app.task(name=name, **options, **way, **config["task"])(body)
    return app


def __getattr__(name: str) -> Any:
    """``tests.chaos.app:app`` for ``celery -A``: built where ``LAB_CONFIG`` is set."""
    if name != "app":
        raise AttributeError(name)
    with _building:
        if "app" not in globals():
            globals()["app"] = make_app(json.loads(Path(os.environ["LAB_CONFIG"]).read_text()))
    return globals()["app"]


_building = threading.Lock()
