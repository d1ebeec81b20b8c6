"""A real run with all that a dashboard shows: contention, a time-out, a late write, a dead message.

Its processes are a prefork worker, a beat and ``dlock metrics``, which Prometheus scrapes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from celery import Celery

from celery_dlock import Ordered, lock, locked_task
from celery_dlock.runtime import forget
from tests.services.effects import Effects
from tests.services.exposition import exposition, samples
from tests.services.lab import Lab
from tests.services.ports import free_ports
from tests.services.until import until
from tests.services.worker import Worker

#: For a lab in which a call is repeated soon, and tasks of one policy give up after a second.
CELERY = {
    "dlock_sinks": ["prometheus"],
    "beat_schedule": {"each second": {"task": "plain", "schedule": 1.0, "args": ["beat"]}},
}
OPTIONS = {"lock": {"policy": "queue for a second"}, "call_again": 200_000, "sweeps_every": 0.2}

APP = "tests.services.lab:app"


class Command(Worker):
    """``celery -A …`` with other words than ``worker``, until its log says that it *is_up*."""

    def __init__(self, lab: Lab, name: str, is_up: bytes, *words: str) -> None:
        super().__init__(lab.folder, lab.config, name, "", 0)
        self._up = is_up
        self._command = [sys.executable, "-m", "celery", "-A", APP, *words]

    @property
    def is_up(self) -> bytes:  # type: ignore[override]
        return self._up


@contextmanager
def running(lab: Lab) -> Iterator[str]:
    """Where ``dlock metrics`` listens, of a lab that works."""
    at = f"127.0.0.1:{free_ports(1)[0]}"
    schedule = str(lab.folder / "schedule")
    beat = ("beat", "-S", "dlock", "--schedule", schedule, "--loglevel", "INFO")
    with ExitStack() as stack:
        stack.enter_context(lab.worker(concurrency=3))
        stack.enter_context(Command(lab, "beat", b"beat: Starting...", *beat))
        stack.enter_context(
            Command(lab, "metrics", b"ready: http", "dlock", "metrics", "--listen", at)
        )
        yield at


def begin(lab: Lab) -> None:
    """Nothing special happens to each of the tasks."""
    Effects(lab.folder).create()
    for task in ("apply", "pay"):
        lab.app.tasks[task].delay("0")
        until_counted(task, "dlock_hold_seconds_count")


def make_everything_happen(lab: Lab) -> None:
    """Returns when each of it is counted. What waits goes on waiting until ``go done``."""
    contention_and_time_out(lab)
    late_write(lab)
    dead_message(lab)
    until_counted("plain", "dlock_beat_sent_total")
    lab.app.tasks["apply"].delay("waits", hold="done")
    lab.journal.wait_for("start", order="waits")
    lab.app.tasks["see"].delay("waits")


def contention_and_time_out(lab: Lab) -> None:
    """One holds the key, one gives up waiting for it, and one has it handed over."""
    apply, see = lab.app.tasks["apply"], lab.app.tasks["see"]
    apply.delay("1", hold="first")
    lab.journal.wait_for("start", order="1")
    apply.delay("1")
    see.delay("1")
    until_counted("apply", "dlock_timed_out_total")
    until_counted("see", "dlock_parked_total")
    lab.go("first")
    until_counted("see", "dlock_woken_seconds_count")


def late_write(lab: Lab) -> None:
    """Its body is about to pay when the fence sees a newer token: of a store with a later epoch."""
    effects = Effects(lab.folder)
    lab.app.tasks["pay"].delay("2", hold="late")
    lab.journal.wait_for("start", order="2")
    later = Celery("later", set_as_current=False)
    later.conf.update(dlock_url="memory://", dlock_fencing_epoch=5)
    with lock("order:2", app=later) as lease:
        effects.pay(lease, "newer")
    lab.go("late")
    until_counted("pay", "dlock_stale_rejected_total")


def dead_message(lab: Lab) -> None:
    """Its publisher knows a task that no worker does, and its turn comes again and again."""
    publisher = Celery("publisher", set_as_current=False)
    publisher.conf.update(lab.config["celery"])

    @locked_task("order:{order}", app=publisher, name="forgotten", on_contention=Ordered())
    def forgotten(order: str) -> None:
        pass

    forgotten.delay("3")
    until_counted("forgotten", "dlock_dead_lettered_total")
    forget(publisher)
    publisher.close()


def until_counted(task: str, metric: str) -> None:
    until(f"{metric} of {task}", lambda: samples(exposition(), task).get(metric))
