"""What is wrong about a task's lock is found when the task is defined, never by a message."""

from __future__ import annotations

import asyncio
import inspect
import math
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
    Replace,
    Reschedule,
    Shared,
    locked_task,
)
from celery_dlock.locks.definition import Definition
from celery_dlock.tasks.typed import TaskOptions

NEWEST = Replace(running=True)


def body(order: str, amount: int = 1) -> None: ...


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown parameter": ({"key": "order:{oder}"}, "oder"),
    "unknown parameter in a list": ({"key": ["order:{order}", "{nobody}"]}, "nobody"),
    "empty key": ({"key": ""}, "empty"),
    "no keys": ({"key": []}, "at least one key"),
    "key of another kind": ({"key": 7}, "template or a callable"),
    "callable that does not fit": ({"key": lambda one, two, three: one}, "does not fit"),
    "stray brace": ({"key": "order:{order"}, "brace"),
    "ttl of 0": ({"key": "k", "ttl": 0}, "ttl"),
    "negative ttl": ({"key": "k", "ttl": -1.0}, "ttl"),
    "endless ttl": ({"key": "k", "ttl": math.inf}, "ttl"),
    "ttl that is no number": ({"key": "k", "ttl": math.nan}, "ttl"),
    "ttl in words": ({"key": "k", "ttl": "30"}, "ttl"),
    "limit of 0": (
        {"key": Limit("k", 0)},
        r"n of Limit\(key='k', n=0, cooldown=None\) says how many tasks may hold the key at once: "
        "it is a number from 1 to 1,000,000, or in a task a function of its arguments .*, got 0$",
    ),
    "negative limit": ({"key": [Limit("k", -1)]}, "got -1$"),
    "limit that is true": ({"key": Limit("k", True)}, "got True$"),
    "half a holder": ({"key": Limit("k", 1.5)}, "got 1.5$"),  # type: ignore[arg-type]
    "limit that is none": ({"key": Limit("k", None)}, "got None$"),  # type: ignore[arg-type]
    "cooldown of 0": (
        {"key": ["a", Limit("k", 2, cooldown=0)]},
        r"cooldown of Limit\(key='k', n=2, cooldown=0\) must be 0.001 s or more, got 0$",
    ),
    "negative cooldown": ({"key": Limit("k", 1, -1)}, "cooldown of .*, got -1$"),
    "cooldown in words": ({"key": Limit("k", 1, "1h")}, "cooldown of .*, got '1h': write 3600$"),  # type: ignore[arg-type]
    "cooldown that is true": ({"key": Limit("k", 1, True)}, "cooldown of .*, got True$"),
    "a limit of readers": (
        {"key": Limit(Shared("k"), 2)},  # type: ignore[arg-type]
        r"Limit\(key=Shared\(key='k'\), .*: a key is held in one way; write Limit or Shared, with",
    ),
    "readers of a limit": ({"key": [Shared(Limit("k", 2))]}, r"Shared\(key=Limit\(.*: a key is"),  # type: ignore[arg-type]
    "a limit of two keys": (
        {"key": Limit(["k", "l"], 2)},  # type: ignore[arg-type]
        r"Limit\(key=\['k', 'l'\], .*: .* the list around the entries, as in \[Limit\('a', 3\),",
    ),
    "readers of two keys": ({"key": Shared(("k", "l"))}, "the list around the entries"),  # type: ignore[arg-type]
    "the newest of two slots": ({"key": Limit("k", 2), "on_contention": NEWEST}, "one key alone"),
    "the newest reader": ({"key": Shared("k"), "on_contention": NEWEST}, "one key alone"),
    "the newest of two keys": ({"key": ["k", "l"], "on_contention": NEWEST}, "one key alone"),
    "the newest child": ({"key": "k", "on_contention": NEWEST, "parents": "p"}, "one key alone"),
    "one key in two ways": (
        {"key": [Limit("{order}", 3), "{order}"]},
        "'{order}' is given twice: a key has one entry, which says how it is held; keep one",
    ),
    "one key in one way, twice": ({"key": ["{order}", "{order}"]}, "'{order}' is given twice"),
    "a limit of another kind": ({"key": [Limit(7, 3)]}, "template or a callable"),  # type: ignore[arg-type]
    "unknown parameter in a limit": ({"key": [Limit("{oder}", 3)]}, "oder"),
    "a limit as a parent": ({"key": "k", "parents": [Limit("p", 3)]}, "template or a callable"),
    "a parent of itself": ({"key": "k", "parents": ["k"]}, "'k' cannot be both a key and its own"),
    "a parent that is its name": ({"key": None, "parents": "charge"}, "its own parent"),
    "a parent twice": ({"key": "k", "parents": ["a:{order}", "a:{order}"]}, "twice"),
    "an empty parent": ({"key": "k", "parents": [""]}, "empty"),
    "unknown parameter in a parent": ({"key": "k", "parents": ["a:{oder}"]}, "oder"),
    "parent of another kind": ({"key": "k", "parents": [7]}, "template or a callable"),
    "parents of another kind": ({"key": "k", "parents": 7}, "template or a callable"),
    "unknown policy": ({"key": "k", "on_contention": "rescheduel"}, "'reschedule'"),
    "no policy": ({"key": "k", "on_contention": 7}, "decide"),
    "unknown on_lost": ({"key": "k", "on_lost": "abrot"}, "'flag' or 'abort', got 'abrot'"),
    "unknown reserve": ({"key": "k", "reserve": "retries"}, "'retry' or 'chain', got 'retries'"),
    "a reserve that is true": ({"key": "k", "reserve": True}, "or 'chain', got True"),
    "a reader that reserves": ({"key": Shared("k"), "reserve": "retry"}, "read lock"),
    "no on_lost": ({"key": "k", "on_lost": None}, "'flag' or 'abort', got None"),
    "a parent, not parents": ({"key": "k", "parent": "orders"}, "did you mean (lock_)?parents=?"),
    "keys, not a list in key": ({"keys": ["a", "b"]}, "did you mean (lock_)?key=?"),
    "limit misspelt": ({"key": "k", "limti": 3}, r"mean (lock_)?key=Limit\(.mail., 3\)\?"),
    "shared misspelt": ({"key": "k", "share": True}, r"mean (lock_)?key=Shared\(.catalog.\)\?"),
    "cooldown misspelt": ({"key": "k", "cooldwon": 9}, r"mean (lock_)?key=Limit\(.*cooldown=60\)"),
    "ttl misspelt": ({"key": "k", "tll": 30}, "did you mean (lock_)?ttl=?"),
    "on_contention misspelt": ({"key": "k", "on_contetion": "skip"}, "(lock_)?on_contention=?"),
    "a policy's class": ({"key": "k", "on_contention": Reschedule}, "decide"),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_decorator_refuses(app: Celery, what: str) -> None:
    options, said = WRONG[what]

    with pytest.raises(ConfigurationError, match=said) as caught:
        locked_task(app=app, name="charge", **options)(body)

    assert str(caught.value).startswith("task charge: ")


def test_with_base_finalizing_the_app_refuses() -> None:
    for options, said in WRONG.values():
        ours = {f"lock_{name}": value for name, value in options.items()}
        app = Celery("unit", set_as_current=False, broker="memory://")
        app.task(base=LockedTask, name="charge", shared=False, **ours)(body)

        with pytest.raises(ConfigurationError, match=said) as caught:
            app.finalize()

        assert str(caught.value).startswith("task charge: ")


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
