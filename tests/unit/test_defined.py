"""The ways to define a locked task, and what each is then."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task, shared_task

from celery_dlock import INJECTED, Lease, LockedTask, lock, locked_task
from celery_dlock.runtime import runtime


def contexts(app: Celery) -> tuple[type[Task], list[str]]:
    """A base class as Flask's documentation has it, and what it notes."""
    notes: list[str] = []

    class InContext(Task):  # type: ignore[misc]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            notes.append("in")
            try:
                return self.run(*args, **kwargs)
            finally:
                notes.append("out")

        def on_success(self, *args: Any) -> None:
            notes.append("success")

    return InContext, notes


def test_a_base_of_the_projects_own_with_a_call_runs_inside_the_lock(app: Celery) -> None:
    base, notes = contexts(app)

    @locked_task("order:{order}", app=app, base=base, name="charge")
    def charge(order: str, *, fencing_token: int = INJECTED) -> int:
        notes.append("body")
        return fencing_token

    assert charge.apply(("42",)).get() > 0
    assert notes == ["in", "body", "out", "success"]
    notes.clear()
    assert charge("42") > 0
    assert notes == ["in", "body", "out"]


def test_a_mixin_with_lockedtask_first_does_the_same(app: Celery) -> None:
    base, notes = contexts(app)
    mixed = type("Mixed", (LockedTask, base), {"abstract": True})

    @app.task(base=mixed, lock_key="order:{order}", name="charge", shared=False)
    def charge(order: str) -> str:
        notes.append("body")
        return order

    assert charge.apply(("42",)).get() == "42"
    assert notes == ["in", "body", "out", "success"]


def test_a_class_of_tasks_can_be_registered(app: Celery) -> None:
    class Charge(LockedTask):
        name = "charge"
        lock_key = "order:{order}"

        def run(self, order: str, *, fencing_token: int) -> int:
            assert self.lease.key == f"order:{order}"
            return fencing_token

    charge = app.register_task(Charge())

    assert charge.apply(("42",)).get() > 0
    assert charge("42") > 0


def keys(task: LockedTask, *args: Any, **kwargs: Any) -> list[str]:
    """The keys that a run of *task*, whose body returns its lease's keys, holds."""
    found: list[str] = task.apply(args, kwargs).get()
    return list(found)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, ["charge"]),
        ("order:{order}", ["order:42"]),
        (lambda order, amount=1: f"f:{order}:{amount}", ["f:42:1"]),
        (["b:{order}", "a:{amount}", lambda order, amount: "c"], ["a:1", "b:42", "c"]),
    ],
)
def test_a_key_is_a_template_a_callable_or_a_list(
    app: Celery, key: Any, expected: list[str]
) -> None:
    @locked_task(key, app=app, name="charge")
    def charge(order: int, amount: int = 1, *, lease: Lease) -> list[str]:
        return list(lease.keys)

    assert keys(charge, 42) == keys(charge, order=42) == expected


def test_bare_it_locks_on_the_tasks_name() -> None:
    @locked_task
    def report(*, lease: Lease) -> list[str]:
        return list(lease.keys)

    app = Celery("bare", set_as_current=False, backend="cache+memory://")
    app.conf.dlock_url = "memory://"
    # Not report.name: that is of the current app, which other tests of this process may have set.
    name = app.gen_task_name("report", __name__)

    assert name.endswith(".report")
    assert keys(app.tasks[name]) == [name]


def test_celerys_options_are_celerys(app: Celery) -> None:
    @locked_task("k", app=app, name="named", acks_late=True, rate_limit="7/m", max_retries=7)
    def charge() -> None: ...

    assert (charge.name, charge.acks_late, charge.max_retries) == ("named", True, 7)
    assert charge.rate_limit == "7/m"


def test_a_plain_task_beside_locked_ones_is_left_alone(app: Celery) -> None:
    @shared_task(name="beside")
    def beside(order: str) -> str:
        return order

    with lock("k", app=app):
        assert app.tasks["beside"].apply(("42",)).get() == "42"


def test_a_key_that_is_held_in_the_store_of_one_application_is_free_in_another(app: Celery) -> None:
    bank = Celery("bank", set_as_current=False)
    bank.conf.dlock_url = "memory://"
    with lock("order:42", app=app), lock("order:42", app=bank):
        assert runtime(bank).backend.peek("order:42").holders
