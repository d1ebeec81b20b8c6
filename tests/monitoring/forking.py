"""A process whose children count, told by its argument how: what the tests start.

``while-counting``: forked while other threads of the parent count; it prints how often they did.
``killed``: one after the other, and each is killed when it has counted.
``folder-gone``: none; the folder is taken away before anything is counted.
``other-insides``: some, with a ``prometheus_client`` that keeps its values elsewhere.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import prometheus_client
from celery import Celery

if sys.argv[1:] == ["other-insides"]:  # its metrics have the module of values, and nobody else
    del prometheus_client.values
    sys.modules["prometheus_client.values"] = None  # type: ignore[assignment]

from celery_dlock.core.events import StaleRejected
from celery_dlock.monitoring.prometheus import PrometheusSink, tally
from celery_dlock.runtime import runtime
from tests.monitoring.happenings import KEY, about, acquired, one_of_each

CHILDREN = 40


def count() -> None:
    PrometheusSink()(StaleRejected(about(), KEY, 7))


def fork(what: signal.Signals | None = None) -> int:
    """A child that counts, and ends as it is told."""
    pid = os.fork()
    if pid == 0:
        count()
        if what is not None:
            os.kill(os.getpid(), what)
        tally.at_exit()
        os._exit(0)
    return pid


def while_counting() -> None:
    over, taken = threading.Event(), list[int]()

    def go_on() -> None:
        sink, times = PrometheusSink(), 0
        while not over.is_set():
            sink(acquired(about("busy")))
            sink(StaleRejected(about("busy"), KEY, 7))
            times += 1
        taken.append(times)

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for child in [fork() for _ in range(CHILDREN)]:
            os.waitpid(child, 0)
    finally:
        over.set()
    for thread in threads:
        thread.join()
    print(sum(taken))  # noqa: T201


def killed() -> None:
    for _ in range(CHILDREN):
        os.waitpid(fork(signal.SIGKILL), 0)


def folder_gone() -> None:
    app = Celery(set_as_current=False)
    app.conf.update(dlock_url="memory://", dlock_sinks=["prometheus"])
    sinks = runtime(app).sinks
    Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).rmdir()
    for event in one_of_each(about()):
        sinks.emit(event)


def other_insides() -> None:
    app = Celery(set_as_current=False)
    app.conf.update(dlock_url="memory://", dlock_sinks=["prometheus"])
    runtime(app)
    for child in [fork() for _ in range(CHILDREN)]:
        os.waitpid(child, 0)


if __name__ == "__main__":
    ways = {
        "while-counting": while_counting,
        "killed": killed,
        "folder-gone": folder_gone,
        "other-insides": other_insides,
    }
    ways[sys.argv[1]]()
