"""Many threads of a web server use a task for the first time at once."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from celery import Celery

from celery_dlock import LockedTask, locked_task
from celery_dlock.runtime import forget


class Slow(LockedTask):
    """Celery is in the middle of making it; others see it already."""

    abstract = True
    seen: ClassVar[threading.Event] = threading.Event()
    done: ClassVar[threading.Event] = threading.Event()

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        cls.seen.set()
        assert cls.done.wait(60)
        super().on_bound(app)


def test_a_task_that_another_thread_is_making_can_be_published() -> None:
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.update(dlock_url="memory://")
    task: Any = locked_task("order:{order_id}", app=app, base=Slow)(charge)
    first = threading.Thread(target=lambda: task.name)
    first.start()
    try:
        assert Slow.seen.wait(60)
        assert task.delay(7).id
    finally:
        Slow.done.set()
        first.join()
        forget(app)
        app.close()


def charge(order_id: int) -> None: ...
