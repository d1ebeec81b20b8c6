"""What an application's own task class does for its tasks, it does for locked ones."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, Task, _state, shared_task
from celery.signals import before_task_publish

from celery_dlock import ConfigurationError, Limit, LockedTask, Queue, Skip, locked_task


class InContext(Task):  # type: ignore[misc]
    """As Flask's documentation has it."""

    acks_late = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ["context", self.run(*args, **kwargs)]


class OfTenant(Task):  # type: ignore[misc]
    """As users of django-tenants have it."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "tenant": "acme"}
        return super().apply_async(args, kwargs, **options)


Make = Callable[..., Celery]


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes applications, which end with the test."""
    made: list[Celery] = []
    # A shared task is made at once for those that other tests have left behind
    monkeypatch.setattr(_state, "_apps", WeakSet[Celery]())

    def make(**options: Any) -> Celery:
        app = Celery("shop", set_as_current=False, broker="memory://", **options)
        app.conf.dlock_url = "memory://"
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


def charge(order: str) -> str:
    return order


def called(app: Celery, name: str = "charge") -> Any:
    task = app.tasks[name]
    assert isinstance(task, LockedTask)
    assert task.app is app
    return task("42")


@pytest.mark.parametrize("task_cls", [InContext, f"{__name__}:InContext"])
def test_a_locked_task_is_of_the_applications_task_class(application: Make, task_cls: Any) -> None:
    app = application(task_cls=task_cls)
    locked_task("order:{order}", app=app, name="charge")(charge)

    assert called(app) == ["context", "42"]
    assert app.tasks["charge"].acks_late


@pytest.mark.parametrize("shared", [False, True])
def test_a_task_class_may_be_assigned_until_tasks_exist(application: Make, shared: bool) -> None:
    app = application()
    locked_task("order:{order}", app=None if shared else app, name="charge")(charge)
    assert "Task" not in vars(app)  # it is made by the time the tasks are

    class Assigned(app.Task):  # type: ignore[misc, name-defined]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return ["assigned", self.run(*args, **kwargs)]

    app.Task = Assigned

    assert called(app) == ["assigned", "42"]


def test_a_shared_task_has_the_class_of_each_application(application: Make) -> None:
    early, plain, late = application(task_cls=InContext), application(), application()
    early.finalize()
    locked_task("order:{order}", name="charge")(charge)
    shared_task(name="plain")(charge)
    late.Task = type("Late", (late.Task,), {"__call__": lambda self, order: ["late", order]})

    for app, result in ((early, ["context", "42"]), (plain, "42"), (late, ["late", "42"])):
        assert called(app) == result
        assert isinstance(app.tasks["charge"], app.Task)
        assert isinstance(app.tasks["plain"], app.Task)


def test_a_task_of_one_application_has_its_class_anywhere(application: Make) -> None:
    shop, bank = application(), application(task_cls=InContext)
    locked_task("order:{order}", app=shop, name="charge")(charge)

    assert (called(shop), called(bank)) == ("42", ["context", "42"])


def test_an_applications_header_is_in_a_shared_tasks_message(application: Make) -> None:
    app = application(task_cls=OfTenant)
    locked_task("order:{order}", name="charge", unique="done")(charge)
    tenants = []

    def published(headers: Any = None, **_: Any) -> None:
        tenants.append(headers.get("tenant"))

    before_task_publish.connect(published)
    try:
        app.tasks["charge"].delay("42")
    finally:
        before_task_publish.disconnect(published)

    assert tenants == ["acme"]


def test_what_all_tasks_of_an_application_do_about_a_lost_lock_is_kept(application: Make) -> None:
    class Alerts(Task):  # type: ignore[misc]
        def on_lock_lost(self, *loss: Any) -> None:
            alerts.append(loss)

    class Ours(LockedTask):
        abstract = True

    app = application(task_cls=Alerts)
    alerts: list[object] = []
    locked_task("order:{order}", name="charge")(charge)
    locked_task("order:{order}", name="based", base=Ours)(charge)

    lost: Any = object()
    app.tasks["charge"].on_lock_lost(lost, "id", ("42",), {})
    app.tasks["based"].on_lock_lost(lost, "id", ("43",), {})  # as Celery: its base was said
    assert alerts == [(lost, "id", ("42",), {})]


def test_the_module_of_a_task_class_is_imported_when_the_tasks_are_made(
    application: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_base.py").write_text(
        "from celery import Task\nclass Base(Task):\n    tenant = 'acme'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app = application(task_cls="shop_base:Base")
    locked_task("order:{order}", name="charge", app=app)(charge)
    locked_task("order:{order}", name="shared")(charge)
    assert "shop_base" not in sys.modules

    assert app.tasks["charge"].tenant == app.tasks["shared"].tenant == "acme"


@pytest.mark.parametrize("given", [False, True])
def test_an_option_of_the_applications_class_is_its_own(application: Make, given: bool) -> None:
    class Timed(Task):  # type: ignore[misc]
        timeout = 3

    app = application(task_cls=Timed)
    locked_task("order:{order}", app=app if given else None, name="charge", timeout=5)(charge)  # type: ignore[call-overload]

    assert app.tasks["charge"].timeout == 5


def test_a_misspelt_option_is_an_error_when_the_task_is_made(application: Make) -> None:
    locked_task("order:{order}", name="charge", uniqe="done")(charge)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"task charge: uniqe= .* did you mean unique="):
        application().finalize()


async def coroutine(order: str) -> None: ...


def test_a_coroutine_needs_a_class_that_runs_it(application: Make) -> None:
    make: Callable[..., Any] = locked_task
    make("order:{order}", app=(app := application()), name="charge")(coroutine)
    with pytest.raises(
        ConfigurationError, match=r"task charge: Celery awaits nothing.*asyncio\.run"
    ):
        app.finalize()

    app = application(task_cls=InContext)
    make("order:{order}", app=app, name="awaited")(coroutine)
    result = called(app, "awaited")[1]
    result.close()
    assert inspect.iscoroutine(result)


@pytest.mark.parametrize("kind", [LockedTask, Task])
@pytest.mark.parametrize("based", [False, True])
def test_what_a_class_says_holds_for_its_tasks(application: Make, based: bool, kind: Any) -> None:
    class Ours(kind):  # type: ignore[misc]
        abstract = True
        lock_key = Limit("tenants", 5)
        lock_ttl = 60
        lock_on_contention = "queue"

    app = application() if based else application(task_cls=Ours)
    options: dict[str, Any] = {"base": Ours} if based else {}
    locked_task(name="charge", **options)(charge)
    options |= {"ttl": 10, "on_contention": "skip"}
    locked_task("order:{order}", name="own", **options)(charge)

    theirs, own = app.tasks["charge"].lock_definition, app.tasks["own"].lock_definition
    assert (theirs.label, theirs.ttl, theirs.access[0].limit) == ("tenants", 60, 5)
    assert (own.label, own.ttl, own.access[0].limit) == ("order:{order}", 10, 1)
    assert (theirs.policy, own.policy) == (Queue(), Skip())


@pytest.mark.parametrize("kind", [LockedTask, Task])
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize(
    ("attribute", "ours"), [("lock_tll", "lock_ttl="), ("lock_limit", "lock_key=Limit(")]
)
def test_what_a_class_misspells_is_an_error_when_the_task_is_made(
    application: Make, kind: Any, based: bool, attribute: str, ours: str
) -> None:
    class Ours(kind):  # type: ignore[misc]
        abstract = True

    setattr(Ours, attribute, 3)
    app = application() if based else application(task_cls=Ours)
    options: dict[str, Any] = {"base": Ours} if based else {}
    locked_task("order:{order}", name="charge", app=app, **options)(charge)

    with pytest.raises(ConfigurationError, match=rf"^task [\w.]+: {attribute}= is ") as caught:
        app.finalize()
    assert ours in str(caught.value)


def test_an_applications_class_may_have_options_of_its_other_lock(application: Make) -> None:
    class Ours(Task):  # type: ignore[misc]
        lock_timeout = 60

    app = application(task_cls=Ours)
    locked_task("order:{order}", name="charge", app=app)(charge)

    assert called(app) == "42"
