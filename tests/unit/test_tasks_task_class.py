"""What an application's own task class does for its tasks, it does for locked ones."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task

from celery_dlock import LockedTask, locked_task


class InContext(Task):  # type: ignore[misc]
    """As Flask's documentation has it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ["context", self.run(*args, **kwargs)]


def test_a_locked_task_is_of_the_applications_task_class() -> None:
    app = Celery("shop", set_as_current=False, task_cls=InContext)
    app.conf.dlock_url = "memory://"

    @locked_task("order:{order}", app=app)
    def charge(order: str) -> str:
        return order

    assert isinstance(charge, LockedTask)
    called: object = charge("42")
    assert called == ["context", "42"]
