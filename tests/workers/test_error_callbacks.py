"""Error callbacks that are locked tasks: each runs as often as a plain one, with its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import pytest
from celery import chain, chord, group
from celery.app.task import Context

from celery_dlock import (
    ConfigurationError,
    Lease,
    LockContended,
    LockedTask,
    Shared,
    current_lease,
    lock,
)
from celery_dlock.testing import held_by_another
from tests.services.desk import Desk
from tests.workers.conftest import charging, held

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
def test_one_that_was_sent_takes_its_key_and_may_retry(desk: Desk, serializer: str) -> None:
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


# Calls without a message: eager mode and plain calls lock too, and fail at once.


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str, *, fencing_token: int, lease: Lease) -> list[Any]:
        assert desk.holders(f"order:{order}") != []
        return [lease.key, fencing_token]

    return charge


#: Each way to call a task without a message.
CALLS: dict[str, Callable[[LockedTask], Any]] = {
    "call": lambda charge: charge("42"),
    "apply": lambda charge: charge.apply(("42",), throw=True).get(),
    "always_eager": lambda charge: charge.delay("42").get(),
}


@pytest.mark.parametrize("how", CALLS)
def test_it_locks_and_frees(desk: Desk, charge: LockedTask, how: str) -> None:
    desk.app.conf.task_always_eager = how == "always_eager"

    found = CALLS[how](charge)

    assert found[0] == "order:42"
    assert found[1] > 0
    assert desk.holders("order:42") == []


@pytest.mark.parametrize("how", CALLS)
def test_it_fails_at_once_when_the_key_is_taken(desk: Desk, charge: LockedTask, how: str) -> None:
    desk.app.conf.task_always_eager = how == "always_eager"

    with held(desk, "order:42") as lease, pytest.raises(LockContended) as caught:
        CALLS[how](charge)

    assert caught.value.key == "order:42"
    assert lease.owner.startswith(str(caught.value.holder))
    assert desk.size() == 0


def frozen(canvas: Any) -> Any:
    canvas.freeze()
    return canvas


#: Makes a canvas of tasks that share a key: one that adds, one that fails, two error callbacks.
CANVASES: dict[str, Callable[..., Any]] = {
    "chain": lambda add, *_: chain(add.s(1, 2), add.s(3), add.s(4)),
    "frozen chain": lambda add, *_: frozen(chain(add.s(1, 2), add.s(3))),
    "chain with an id": lambda add, *_: chain(add.s(1, 2), add.s(3)).set(task_id="one"),
    "chain of chains": lambda add, *_: chain(chain(add.s(1, 2), add.s(3)), add.s(4)),
    "group": lambda add, *_: group(add.s(1, 2), chain(add.s(3, 4), add.s(5))),
    "chord": lambda add, *_: chord([add.s(1, 2), chain(add.s(3, 4), add.s(5))], add.si(6, 7)),
    "chain with a group": lambda add, *_: chain(add.s(1, 2), group(add.s(3), add.s(4))),
    "chain after a group": lambda add, *_: chain(group(add.s(1, 2), add.s(3, 4)), add.si(5, 6)),
    "link": lambda add, *_: add.s(1, 2).set(link=add.s(3)),
    "links": lambda add, *_: add.s(1, 2).set(link=[add.s(3), add.si(4, 5)]),
    "link of a chain": lambda add, *_: chain(add.s(1, 2), add.s(3)).set(link=add.s(4)),
    "task with an id": lambda add, *_: add.s(1, 2).set(task_id="one"),
    "frozen task": lambda add, *_: frozen(add.s(1, 2)),
    "error callback": lambda add, fails, by_id, called: fails.s().set(link_error=by_id.s()),
    "called callback": lambda add, fails, by_id, called: fails.s().set(link_error=called.s()),
    "error of a chain": lambda add, fails, by_id, called: chain(
        add.s(1, 2), fails.si(), add.si(3, 4)
    ).on_error(called.s()),
    "error of a chord": lambda add, fails, by_id, called: chord(
        [add.s(1, 2), fails.si()], add.si(3, 4).on_error(by_id.s())
    ),
}


@pytest.mark.parametrize("always", [True, False], ids=["always eager", "apply()"])
@pytest.mark.parametrize("canvas", CANVASES)
def test_an_eager_canvas_is_one_of_plain_tasks(desk: Desk, canvas: str, always: bool) -> None:
    desk.app.conf.task_always_eager = always
    plain = _uses(desk.app.task, CANVASES[canvas], always=always)
    locked = _uses(partial(desk.locked, "order"), CANVASES[canvas], always=always)

    assert locked == plain
    assert plain[0], "nothing ran"
    assert desk.holders("order") == []


def _uses(make: Any, build: Any, *, always: bool) -> Any:
    """What runs, and what comes of it, when a canvas of tasks of one kind is used twice."""
    ran: list[Any] = []
    kind = "plain" if not isinstance(make, partial) else "locked"

    @make(name=f"{kind} add")
    def add(x: int, y: int) -> int:
        ran.append((x, y))
        return x + y

    @make(name=f"{kind} fails")
    def fails() -> None:
        ran.append("fails")
        raise ValueError

    @make(name=f"{kind} by id", bind=True)
    def by_id(self: Any, task_id: str) -> None:
        ran.append(("called back", type(task_id)))

    @make(name=f"{kind} called")
    def called(request: Any, exc: Exception, traceback: Any) -> None:
        ran.append(("called back", type(exc)))

    made = build(add, fails, by_id, called)
    ends: list[list[Any]] = []
    for _ in range(2):
        try:
            result = made.apply_async() if always else made.apply()
            members = getattr(result, "results", [result])
            ends.append([(r.state, r.result if r.state == "SUCCESS" else None) for r in members])
        except Exception as exc:
            ends.append([type(exc)])
    return ran, ends


def test_calling_another_task_of_the_same_key_runs_it_under_the_same_lease(desk: Desk) -> None:
    @desk.locked("order:{order}", name="inner")
    def inner(order: str, *, fencing_token: int) -> int:
        return fencing_token

    @desk.locked("order:{order}", name="outer")
    def outer(order: str, *, fencing_token: int) -> list[int]:
        found = [fencing_token, inner(order), fencing_token]
        assert desk.holders(f"order:{order}") != []  # the inner call did not free it
        return found

    result = outer.apply_async(("42",))
    desk.deliver()

    assert len(set(result.get())) == 1
    assert desk.holders("order:42") == []


def test_calling_oneself_on_a_taken_key_never_reschedules_the_outer_message(desk: Desk) -> None:
    caught: list[str] = []

    @desk.locked("order:{order}", name="move")
    def move(order: str, other: str | None = None) -> str:
        if other:
            try:
                move(other)
            except LockContended as exc:
                caught.append(exc.key)
        return "moved"

    result = move.apply_async(("42", "43"))
    with held(desk, "order:43"):
        desk.deliver()

    assert caught == ["order:43"]
    assert result.get() == "moved"
    assert desk.size() == 0
    assert desk.holders("order:42") == desk.holders("order:43") == []


@pytest.mark.parametrize("shared", [True, False])
def test_a_lock_in_the_other_mode_raises_at_once(desk: Desk, shared: bool) -> None:
    keys: list[Any] = [Shared("k"), "k"]

    @desk.locked(keys[shared], name="outer")
    def outer() -> None:
        with lock(keys[not shared], app=desk.app, timeout=60):
            pass

    with pytest.raises(LockContended):
        outer()
    assert desk.holders("k") == []


def test_greenlets_hold_each_their_own(desk: Desk) -> None:
    @desk.locked("order:{order}", name="who")
    def who(order: str) -> list[str]:
        before = current_lease().key
        gevent.sleep(0)  # the others run here
        return [before, current_lease().key]

    greenlets = [gevent.spawn(who, str(number)) for number in range(5)]
    gevent.joinall(greenlets, raise_error=True)

    assert [g.value for g in greenlets] == [[f"order:{n}"] * 2 for n in range(5)]
    with pytest.raises(ConfigurationError):
        current_lease()


def test_vars_of_the_task_do_not_change(desk: Desk, charge: LockedTask) -> None:
    charge.apply_async(("42",))
    desk.deliver()
    charge("42")
    before = dict(vars(charge))

    with held(desk, "order:42"):
        charge.apply_async(("42",))
        desk.deliver()
    desk.deliver_all()
    charge("43")
    charge.apply(("43",))

    assert vars(charge) == before


@pytest.mark.parametrize("how", ["map", "starmap", "chunks"])
@pytest.mark.parametrize("published", ["by the task", "by its name"])
def test_it_is_not_called_for_each_of_many_items(desk: Desk, how: str, published: str) -> None:
    charge = charging(desk, on_contention="queue")
    items = ["1", "2"] if how == "map" else [("1",), ("2",)]
    if published == "by the task":
        with pytest.raises(ConfigurationError, match=r"task charge: map\(\).* Publish a group"):
            getattr(charge, how)(items, *([2] if how == "chunks" else []))
        return
    name = "celery.map" if how == "map" else "celery.starmap"
    result = desk.app.tasks[name].delay(charge.s(), items)
    with held(desk, "order:2"):
        desk.deliver()

    assert (result.state, type(result.result)) == ("FAILURE", ConfigurationError)
    assert desk.ran == []


# What callers may pass: everything but what the lock hands over.


@pytest.mark.parametrize("name", ["fencing_token", "lease"])
def test_callers_cannot_pass_the_locks_arguments(desk: Desk, charge: LockedTask, name: str) -> None:
    for call in (charge, charge.delay, charge.s().delay):
        with pytest.raises(TypeError, match=f"{name} is handed to the body"):
            call(**{"order": "42", name: 7})
    with pytest.raises(TypeError, match=f"{name} is handed to the body"):
        charge.apply(("42",), {name: 7}, throw=True)
    assert desk.size() == 0

    # By name nobody is there to refuse it; the worker does, and where people see it
    result = desk.app.send_task("charge", ("42",), {name: 7})
    desk.deliver()
    assert result.state == "FAILURE"
    assert f"{name} is handed to the body" in str(result.result)
    assert desk.holders("order:42") == []


def test_celerys_check_of_arguments_asks_for_nothing_more(desk: Desk, charge: LockedTask) -> None:
    charge.delay("42")
    with pytest.raises(TypeError):
        charge.delay()
    with pytest.raises(TypeError):
        charge.delay("42", "too many")
    assert desk.size() == 1
