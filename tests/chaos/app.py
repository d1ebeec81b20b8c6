"""The application that a campaign's workers run: one body, under all kinds of locks."""

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

from celery_dlock import DLockError, Lease, LockedTask, lock
from celery_dlock.core.events import Event, Rescheduled, Woken
from tests.chaos.resource import Resource, Who
from tests.chaos.unheard import note_unheard
from tests.chaos.ways import INNER, WAYS

logger = logging.getLogger("tests.chaos")


def note(event: Event) -> None:
    """A sink: whatever the library publishes is in the worker's log."""
    if isinstance(event, Woken | Rescheduled):
        subject = event.subject
        logger.warning("Task %s[%s] published", subject.task_name, subject.task_id)


def make_app(config: Mapping[str, Any]) -> Celery:
    """*config*: ``folder``, ``celery`` (its configuration), ``task`` (options of its tasks)."""
    folder = Path(config["folder"])
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # where a campaign may have put a store of its own
    app = Celery("chaos", set_as_current=False)
    app.conf.update(config["celery"])
    resource = Resource(folder)

    def body(
        self: Any, key: str, steps: list[float], retries: int, call: int, *, lease: Lease
    ) -> None:
        task, attempt = self.request.id, self.request.retries
        who = Who(uuid.uuid4().hex, task, attempt)
        resource.look(who, lease)
        for step in steps:
            time.sleep(step)
            resource.look(who, lease)
            if lease.replaced:
                lease.check()
        if attempt < retries:
            raise self.retry(countdown=0.1)
        if self.name == "nested":
            inside(Who(uuid.uuid4().hex, task, attempt))
        resource.change(task, lease, call)
        resource.look(who, lease, ending=True)

    def inside(who: Who) -> None:
        """Another lock, for a moment; it is asked for until it is there."""
        try:
            with lock(INNER, app=app) as lease:
                resource.look(who, lease)
                time.sleep(0.02)
                resource.look(who, lease)
        except DLockError:
            logger.info("asks for it again", exc_info=True)
            inside(who)

    for name, way in WAYS.items():
        options = {"base": LockedTask, "bind": True, "shared": False, "lock_key": "{key}"}
        app.task(name=name, **{**options, **way, **config["task"]})(body)
    return app


def __getattr__(name: str) -> Any:
    """``tests.chaos.app:app`` for ``celery -A``: built where ``LAB_CONFIG`` is set."""
    if name != "app":
        raise AttributeError(name)
    with _building:
        if "app" not in globals():
            config = json.loads(Path(os.environ["LAB_CONFIG"]).read_text())
            note_unheard(Path(config["folder"]))
            globals()["app"] = make_app(config)
    return globals()["app"]


_building = threading.Lock()
