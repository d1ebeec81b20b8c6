"""What is wrong about a task's lock is found when the task is defined, never by a message."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task
from celery._state import _on_app_finalizers

from celery_dlock import (
    ConfigurationError,
    Lease,
    LockedTask,
    Reschedule,
    locked_task,
)


@pytest.fixture(autouse=True)
def leave_no_shared_tasks() -> Iterator[None]:
    before = set(_on_app_finalizers)
    yield
    _on_app_finalizers.intersection_update(before)


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("unit", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.dlock_url = "memory://"
    yield app
    app.close()


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
    "max_hold of 0": ({"key": "k", "max_hold": 0}, "max_hold"),
    "limit of 0": ({"key": "k", "limit": 0}, "limit"),
    "negative limit": ({"key": "k", "limit": -1}, "limit"),
    "limit that is true": ({"key": "k", "limit": True}, "limit"),
    "half a holder": ({"key": "k", "limit": 1.5}, "limit"),
    "limited readers": ({"key": "k", "limit": 2, "shared": True}, "readers run together"),
    "unknown policy": ({"key": "k", "on_contention": "rescheduel"}, "'reschedule'"),
    "no policy": ({"key": "k", "on_contention": 7}, "decide"),
    "a policy's class": ({"key": "k", "on_contention": Reschedule}, "decide"),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_decorator_refuses(app: Celery, what: str) -> None:
    options, said = WRONG[what]

    with pytest.raises(ConfigurationError, match=said) as caught:
        locked_task(app=app, name="charge", **options)(body)

    assert str(caught.value).startswith("task charge: ")


@pytest.mark.parametrize("what", WRONG)
def test_with_base_finalizing_the_app_refuses(app: Celery, what: str) -> None:
    options, said = WRONG[what]
    options = {f"lock_{name}": value for name, value in options.items()}
    app.task(base=LockedTask, name="charge", shared=False, **options)(body)

    with pytest.raises(ConfigurationError, match=said) as caught:
        app.finalize()

    assert str(caught.value).startswith("task charge: ")


def test_a_shared_task_refuses_just_as_early() -> None:
    with pytest.raises(ConfigurationError, match="oder"):
        locked_task("order:{oder}")(body)


def positional(order: str, fencing_token: int) -> None: ...
def positional_lease(lease: Lease, order: str) -> None: ...
def token(order: str, *, fencing_token: int) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "options", "said"),
    [
        (positional, {}, "fencing_token must be keyword-only"),
        (positional_lease, {}, "lease must be keyword-only"),
        (token, {"shared": True}, "a read lock has no fencing token"),
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
