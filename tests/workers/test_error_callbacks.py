"""Error callbacks that are locked tasks: each runs as often as a plain one, with its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group
from celery.app.task import Context

from celery_dlock import LockedTask, current_lease
from celery_dlock.testing import held_by_another
from tests.services.desk import Desk

Calls = list[tuple[Any, ...]]


@pytest.fixture
def calls() -> Calls:
    """What the callbacks were called with: ids and notes, and the types of all else."""
    return []


@pytest.fixture
def bodies(calls: Calls) -> dict[str, Callable[..., Any]]:
    def note(*values: Any) -> None:
        calls.append(tuple(v if isinstance(v, str | None) else type(v).__name__ for v in values))

    def new_style(request: Any, exc: Any, traceback: Any) -> None:
        assert isinstance(request, Context)
        assert (request.id, list(request.args)) == ("failed", ["42"])
        assert (type(exc), exc.args) == (ValueError, ("declined",))
        assert "ValueError" in traceback
        note("new style", request.id)

    def new_style_and_more(request: Any, exc: Any, traceback: Any, more: str = "") -> None:
        new_style(request, exc, traceback)
        note(more)

    def anything(*args: Any) -> None:
        note(*(arg.id if isinstance(arg, Context) else str(arg)[:8] for arg in args))

    def only_id(task_id: str) -> None:
        note(task_id)

    def bound_id(self: Any, task_id: str) -> None:
        note(task_id)

    def bound_and_a_default(self: Any, task_id: str, more: str | None = None) -> None:
        note(task_id, more)

    def bound_anything(self: Any, *args: Any) -> None:
        note(*args)

    return {
        "new style": new_style,
        "with an argument more": new_style_and_more,
        "id": only_id,
        "anything": anything,
        "bound, id": bound_id,
        "bound, id and a default": bound_and_a_default,
        "bound, anything": bound_anything,
    }


FORMS = (
    *("new style", "with an argument more", "id", "anything"),
    *("bound, id", "bound, id and a default", "bound, anything"),
)


@pytest.fixture
def fails(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="fails")
    def fails(order: str) -> None:
        raise ValueError("declined")

    return fails


def errback(desk: Desk, bodies: Any, form: str, **options: Any) -> Any:
    bind = form.startswith("bound")
    make = desk.locked if "key" in options else desk.app.task
    return make(name=f"{form} {options}", bind=bind, **options)(bodies[form]).s()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("key", "policy"),
    [
        pytest.param("free", "fail", id="free"),
        pytest.param("order:42", "fail", id="of the failed task"),
        pytest.param(["order:42", "free"], "skip", id="of the failed task, and another"),
        pytest.param("held", "queue", id="held by another"),
        pytest.param(["order:42", "held"], "queue", id="of the failed task, and one that is held"),
    ],
)
def test_it_is_called_as_a_plain_one_is(
    desk: Desk, fails: LockedTask, bodies: Any, calls: Calls, form: str, key: Any, policy: str
) -> None:
    fails.apply_async(("42",), task_id="failed", link_error=errback(desk, bodies, form))
    desk.deliver_all()
    plain, calls[:] = list(calls), []
    desk.result("failed").forget()

    link = errback(desk, bodies, form, key=key, on_contention=policy)
    fails.apply_async(("42",), task_id="failed", retries=1, link_error=link)
    with held_by_another("held", app=desk.app):
        desk.deliver_all()
    desk.deliver_all()

    assert calls == plain != []
    error = desk.result("failed").result
    assert (type(error), error.args) == (ValueError, ("declined",))


def test_it_runs_under_the_lease_of_the_task_that_failed(desk: Desk) -> None:
    leases = []

    @desk.locked("order:{order}", name="fails")
    def fails(order: str) -> None:
        leases.append(current_lease())
        raise ValueError

    @desk.locked("order:{request.args[0]}", name="refund")
    def refund(request: Any, exc: Any, traceback: Any) -> None:
        assert desk.holders("order:42") != []
        leases.append(current_lease())

    fails.apply_async(("42",), link_error=refund.s())
    desk.deliver_all()

    tokens = [lease.fencing_token for lease in leases]
    assert len(tokens) == 2
    assert tokens[0] == tokens[1]
    assert desk.holders("order:42") == []


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml"])
def test_one_that_was_sent_takes_its_key_from_the_request_and_may_retry(
    desk: Desk, serializer: str
) -> None:
    desk.app.conf.update(accept_content=["json", "pickle"], task_serializer=serializer)
    calls = []

    @desk.app.task(name="fails", serializer="json")
    def fails(order: str) -> None:
        raise KeyError(order)

    @desk.locked(
        "order:{request.args[0]}", name="refund", bind=False, on_contention="queue", max_retries=2
    )
    def refund(request: Any, exc: Any, traceback: Any) -> None:
        calls.append((request.args, type(exc), exc.args))
        if len(calls) == 1:
            raise refund.retry(countdown=0, serializer=None if serializer != "yaml" else "json")

    fails.apply_async(("42",), link_error=refund.s().set(queue="celery"))
    with held_by_another("order:42", app=desk.app):
        desk.deliver_all()
        assert calls == []
    desk.deliver_all()

    assert [(list(args), *error) for args, *error in calls] == [(["42"], KeyError, ("42",))] * 2


def test_an_argument_that_no_message_carries_is_left_out(desk: Desk) -> None:
    calls = []

    @desk.app.task(name="fails", bind=True)
    def fails(self: Any) -> None:
        self.request.connection = object()
        raise ValueError(object())

    @desk.locked("held", name="refund", on_contention="queue")
    def refund(request: Any, exc: Any, traceback: Any) -> None:
        calls.append((request.task, type(exc)))

    fails.apply_async(link_error=refund.s())
    with held_by_another("held", app=desk.app):
        desk.deliver_all()
    desk.deliver_all()

    assert calls == [("fails", ValueError)]


def test_a_task_that_a_callback_calls_itself_fails_at_once(desk: Desk, fails: LockedTask) -> None:
    refused = []

    @desk.locked("held", name="inner", on_contention="queue")
    def inner() -> None: ...

    @desk.app.task(name="outer")
    def outer(request: Any, exc: Any, traceback: Any) -> None:
        try:
            inner()
        except Exception as exc:
            refused.append(type(exc).__name__)

    fails.apply_async(("42",), link_error=outer.s())
    with held_by_another("held", app=desk.app):
        desk.deliver_all()

    assert refused == ["LockContended"]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("canvas", ["chain", "group", "chord's header", "chord's body"])
def test_those_of_a_canvas_run_as_well(
    desk: Desk, fails: LockedTask, calls: Calls, canvas: str, held: bool
) -> None:
    make = desk.locked("order:42" if not held else "held", name="refund", on_contention="queue")

    @make
    def refund(request: Any, exc: Any, traceback: Any) -> None:
        calls.append(("refund",))

    @desk.locked("order:{order}", name="works")
    def works(order: str) -> None: ...

    ok, bad = works.si("1"), fails.si("42")
    made: Any = {
        "chain": lambda: chain(ok, bad, ok).on_error(refund.s()),
        "group": lambda: group(ok, bad).on_error(refund.s()),
        "chord's header": lambda: chord([ok, bad], ok.clone().on_error(refund.s())),
        "chord's body": lambda: chord([ok, ok], bad.clone().on_error(refund.s())),
    }[canvas]()
    made.apply_async()
    with held_by_another("held", app=desk.app):
        desk.deliver_all()
    desk.deliver_all()

    assert calls == [("refund",)]
