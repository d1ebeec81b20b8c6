"""What is wrong about a task's lock is found when the task is defined, never by a message.

What is written in one line is in ``tests/unit/test_misuses.py``.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from inspect import isroutine, signature
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task

from celery_dlock import (
    ConfigurationError,
    Lease,
    Limit,
    LockedTask,
    Shared,
    locked_task,
)
from celery_dlock.locks.definition import Definition
from celery_dlock.tasks.typed import TaskOptions


def body(order: str, amount: int = 1) -> None: ...


def test_all_that_celery_takes_is_handed_on_and_what_a_project_has_of_its_own(app: Celery) -> None:
    celerys: dict[str, Any] = dict.fromkeys(("acks_late", "typing", "retry_backoff"), True)
    celerys |= {"bind": False, "lazy": False, "rate_limit": "1/s", "autoretry_for": (KeyError,)}
    own: dict[str, Any] = {"team": "billing", "patience": 3, "lock_account": 7, "once_a_day": True}
    own |= {"retry_limit": 3, "title": "Charge an order", "parent_id": 5}

    task = locked_task("k", app=app, max_retries=3, **celerys, **own)(body)

    assert (task.team, task.patience, task.lock_account) == ("billing", 3, 7)


def test_to_a_type_checker_all_that_celery_takes_is_an_option() -> None:
    parameters = set(signature(Celery._task_from_fun).parameters) - {"self", "fun", "options"}
    attributes = {name for name, value in vars(Task).items() if not isroutine(value)}
    attributes -= {"Strategy", "abstract", "app", "from_config", "request", "request_stack"}
    attributes -= {"MaxRetriesExceededError", "OperationalError"}  # raised, and not given
    celerys = parameters | attributes | dict(Task.from_config).keys()

    named = TaskOptions.__annotations__.keys() | {"bind"}
    assert {name for name in celerys if not name.startswith("_")} <= named


def test_what_a_base_class_of_the_project_misspells_is_refused(app: Celery) -> None:
    class Slow(LockedTask):
        abstract = True
        lock_onlost = "abort"

    app.task(base=Slow, name="charge", shared=False, lock_key="k")(body)

    with pytest.raises(ConfigurationError, match=r"lock_onlost= is no option; .* lock_on_lost="):
        app.finalize()


def test_what_the_projects_own_class_has_is_not_taken_for_misspelt(app: Celery) -> None:
    class Sharded(Task):  # type: ignore[misc]
        abstract = True
        shard = ""

    task = locked_task("k", app=app, base=Sharded, shard="eu")(body)  # type: ignore[call-overload]

    assert task.shard == "eu"


def test_a_shared_task_refuses_just_as_early() -> None:
    with pytest.raises(ConfigurationError, match="oder"):
        locked_task("order:{oder}")(body)


def positional(order: str, fencing_token: int) -> None: ...
def positional_lease(lease: Lease, order: str) -> None: ...
def token(order: str, *, fencing_token: int) -> None: ...


def test_a_base_class_of_the_project_may_await_the_body_under_the_lock(app: Celery) -> None:
    class Awaiting(Task):  # type: ignore[misc]
        def __call__(self, *args: object, **kwargs: object) -> object:
            return asyncio.run(super().__call__(*args, **kwargs))

    @locked_task("order:{order}", app=app, base=Awaiting)
    async def charge(order: int, *, lease: Lease) -> bool:
        return lease.lost

    assert charge.apply((42,)).get() is False


@pytest.mark.parametrize(
    ("wrong", "options", "said"),
    [
        (positional, {}, "fencing_token must be keyword-only"),
        (positional_lease, {}, "lease must be keyword-only"),
        (token, {"key": Shared("k")}, "a read lock has no fencing token"),
        (token, {"key": ["a", "b"]}, "lease.fencing_tokens"),
    ],
)
def test_a_body_cannot_ask_for_what_there_is_not(
    app: Celery, wrong: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        locked_task(**{"key": "k", "app": app, **options})(wrong)


def test_the_injected_are_no_parameters_of_a_key(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="fencing_token"):
        locked_task("order:{fencing_token}", app=app)(token)


def test_a_call_that_would_come_before_the_lock_is_refused(app: Celery) -> None:
    class InContext(Task):  # type: ignore[misc]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class WrongWayRound(InContext, LockedTask):
        abstract = True

    app.task(base=WrongWayRound, name="charge", shared=False, lock_key="k")(body)

    with pytest.raises(ConfigurationError, match="put LockedTask first"):
        app.finalize()


@pytest.mark.parametrize("eager", [False, True])
def test_the_result_of_any_call_says_that_it_is_no_duplicate(app: Celery, eager: bool) -> None:
    app.conf.task_always_eager = eager
    for unique in (None, "done"):
        task = locked_task("order:{order}", app=app, name=f"of {unique}", unique=unique)(body)
        assert task.delay("42").is_duplicate is False


@pytest.mark.parametrize(
    ("args", "kwargs"), [(([], "str"), {}), (("str",), {}), ((), {"kwargs": ["a"]}), ((5,), {})]
)
def test_arguments_of_another_kind_are_refused_as_by_celery(
    app: Celery, args: Any, kwargs: Any
) -> None:
    plain = app.task(name="plain")(body)
    task = locked_task("order:{order}", app=app, name="locked", unique="done")(body)
    for made in (plain, task):
        with pytest.raises(TypeError) as caught:
            made.apply_async(*args, **kwargs)
        assert "celery_dlock" not in str(caught.value)


SOURCE = """
def charge(order: Order, amount: Amount = 1) -> Receipt: ...
def key(order: Order, amount: Amount) -> Key: ...
def limit(order: Order, amount: Amount) -> Number: return 2
"""


def test_types_that_only_checkers_import_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given functions whose annotations have no value, Where Python would evaluate them
    evaluates = sys.version_info >= (3, 14)
    as_text = 0 if evaluates else annotations.compiler_flag
    shop: dict[str, Any] = {"__name__": "shop"}
    exec(compile(SOURCE, "shop.py", "exec", as_text, dont_inherit=True), shop)
    if not evaluates:
        _evaluate_as_python_3_14(monkeypatch)

    definition = Definition.of(
        shop["charge"], bound=False, name="charge", key=[Limit(shop["key"], shop["limit"])]
    )

    assert list(definition.signature.parameters) == ["order", "amount"]


def _evaluate_as_python_3_14(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rules of :mod:`annotationlib`: only as text, or as references, they need no value."""
    read = inspect.signature

    def evaluated(function: Any, *, annotation_format: str = "VALUE", **how: Any) -> Any:
        if annotation_format == "VALUE":
            raise NameError("name 'Order' is not defined")
        return read(function, **how)

    formats = SimpleNamespace(STRING="STRING", FORWARDREF="FORWARDREF")
    monkeypatch.setitem(sys.modules, "annotationlib", SimpleNamespace(Format=formats))
    monkeypatch.setattr(inspect, "signature", evaluated)
    monkeypatch.setattr(sys, "version_info", (3, 14))
