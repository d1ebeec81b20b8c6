"""The application of the tests' beats, and of the worker that runs what they send.

Each process is configured by the file that ``LAB_CONFIG`` names. A beat has a fast clock, and
notes in its journal what it publishes, what its scheduler tells, and when it stood still; the
worker goes by the real clock, and notes what it ran.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.signals import after_task_publish, beat_init, before_task_publish

from celery_dlock import Lease, LockedTask, Queue
from celery_dlock.core.events import Event
from tests.services.beat_entries import Entry
from tests.services.fast_clock import FastClock
from tests.services.lab import Journal, hold_at
from tests.services.schedule_files import written_at_once

written_at_once()

#: The header that says at which instant a tick fell due.
DUE = "dlock_due"

#: A process that is this many seconds late at its alarm has stood still.
STOOD_STILL = 0.3


class BeatCelery(Celery):  # type: ignore[misc]
    """Its time is that of a fast clock, also when it comes back from a schedule file."""

    fast: ClassVar[FastClock]

    def now(self) -> datetime:
        return self.fast.now().astimezone(self.timezone)


class Witness:
    """What a beat does, noted in the journal under its *name*."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.folder = Path(config["folder"])
        self.journal = Journal(self.folder / "journal")
        self.name: str = config["name"]
        self.clock = FastClock.from_config(config["clock"])

    def before(self, headers: Mapping[str, Any], body: Any, **_: Any) -> None:
        self._hold("before", headers, body)
        self._tell("publishing", headers, body)

    def after(self, headers: Mapping[str, Any], body: Any, **_: Any) -> None:
        self._tell("published", headers, body)
        self._hold("after", headers, body)

    def note(self, event: Event) -> None:
        """A sink: whatever the scheduler tells."""
        told = json.loads(json.dumps(asdict(event), default=str))
        self._write("event", kind=type(event).__name__, told=told)

    def watch(self, **_: Any) -> None:
        threading.Thread(target=self._note_when_it_stood_still, daemon=True).start()

    def _note_when_it_stood_still(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(STOOD_STILL / 6)
            if time.monotonic() - began > STOOD_STILL:
                self._write("stood still", since=began)

    def _tell(self, what: str, headers: Mapping[str, Any], body: Any, **told: Any) -> None:
        _, kwargs, _ = body
        told = {"entry": kwargs.get("entry"), "id": headers["id"], "due": headers.get(DUE), **told}
        self._write(what, **told)

    def _hold(self, when: str, headers: Mapping[str, Any], body: Any) -> None:
        """Where the test wants some beat to stop with an entry, until it says go."""
        wanted = self.folder / f"hold-{when}"
        if wanted.exists() and wanted.read_text() == body[1].get("entry"):
            wanted.unlink()
            self._tell("held", headers, body, when=when)
            hold_at(self.folder, self.name, timeout=120)
            (self.folder / f"go-{self.name}").unlink()

    def _write(self, what: str, **told: Any) -> None:
        now = self.clock.now().isoformat()
        self.journal.write(what, beat=self.name, mono=time.monotonic(), now=now, **told)


def make_app(config: Mapping[str, Any]) -> Celery:
    """*config*: ``celery``, and for a beat ``folder``, ``name``, ``clock`` and ``entries``."""
    if "clock" not in config:
        app = Celery("beats", set_as_current=False)
        app.conf.update(config["celery"])
        register(app)
        return app
    witness = Witness(config)
    BeatCelery.fast = witness.clock
    if config["celery"].get("dlock_beat_scheduler") == "django":
        from tests.services.django_rows import tell_the_time, use_rows

        use_rows(witness.folder)
        tell_the_time(pytest.MonkeyPatch(), witness.clock.now)
    app = BeatCelery("beats")  # the current one: schedules that come back from a file ask it
    app.conf.update(config["celery"], dlock_sinks=[witness.note])
    app.conf.beat_schedule = {
        entry.name: {
            "task": entry.task,
            "schedule": entry.celery_schedule(app),
            "kwargs": {"entry": entry.name, "folder": config["folder"]},
        }
        for entry in map(Entry.from_config, config["entries"])
    }
    register(app)
    before_task_publish.connect(witness.before, weak=False)
    after_task_publish.connect(witness.after, weak=False)
    beat_init.connect(witness.watch, weak=False)
    return app


def register(app: Celery) -> None:
    """Define ``locked`` and ``plain`` on *app*: the two kinds of task that a tick can start."""

    def ran(request: Any, entry: str, folder: str, token: int | None) -> None:
        told = {"id": request.id, "due": request.get(DUE), "token": token}
        Journal(Path(folder) / "journal").write("ran", entry=entry, **told)

    def locked(self: Any, *, entry: str, folder: str, lease: Lease) -> None:
        ran(self.request, entry, folder, lease.fencing_token)

    def plain(self: Any, *, entry: str, folder: str) -> None:
        ran(self.request, entry, folder, None)

    common = {"bind": True, "shared": False, "acks_late": True}
    lock = {"base": LockedTask, "lock_key": "{folder}:{entry}", "lock_on_contention": Queue()}
    app.task(name="locked", **common, **lock)(locked)
    app.task(name="plain", **common)(plain)


def __getattr__(name: str) -> Any:
    """``tests.services.beat_app:app`` for ``celery -A``: built where ``LAB_CONFIG`` is set."""
    if name != "app":
        raise AttributeError(name)
    with _building:
        if "app" not in globals():
            globals()["app"] = make_app(json.loads(Path(os.environ["LAB_CONFIG"]).read_text()))
    return globals()["app"]


_building = threading.Lock()
