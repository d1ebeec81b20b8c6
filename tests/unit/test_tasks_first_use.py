"""Many threads of a web server use a task for the first time at once."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
from celery import Celery

from celery_dlock import LockedTask, locked_task
from celery_dlock.runtime import forget


class Slow(LockedTask):
    """Celery is in the middle of making it; others see it already."""

    abstract = True
    seen: ClassVar[threading.Event]
    done: ClassVar[threading.Event]

    @classmethod
    def stand_still(cls) -> None:
        cls.seen.set()
        assert cls.done.wait(60)


class SlowlyAnnotated(Slow):
    """It has its app and no request yet."""

    abstract = True

    @classmethod
    def annotate(cls) -> None:
        cls.stand_still()
        super().annotate()


class SlowlyBound(Slow):
    """It has all but what we add."""

    abstract = True

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        cls.stand_still()
        super().on_bound(app)


@pytest.mark.parametrize("base", [SlowlyAnnotated, SlowlyBound])
def test_a_task_that_another_thread_is_making_can_be_published(base: type[Slow]) -> None:
    base.seen, base.done = threading.Event(), threading.Event()
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.update(dlock_url="memory://")
    task: Any = locked_task("order:{order_id}", app=app, base=base)(charge)
    first = threading.Thread(target=lambda: task.name)
    first.start()
    try:
        assert base.seen.wait(60)
        assert task.delay(7).id
        assert task.AsyncResult("a").backend
    finally:
        base.done.set()
        first.join()
        forget(app)
        app.close()


def charge(order_id: int) -> None: ...
