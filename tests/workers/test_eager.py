"""Calls without a message: eager mode and plain calls lock too, and fail at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gevent
import pytest
from celery import chain, chord, group

from celery_dlock import ConfigurationError, Lease, LockContended, LockedTask, current_lease, lock
from tests.services.desk import Desk
from tests.workers.conftest import charging, held


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
def test_an_eager_canvas_behaves_as_one_of_plain_tasks(
    desk: Desk, canvas: str, always: bool
) -> None:
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
def test_a_lock_on_the_key_of_the_body_in_the_other_mode_raises_at_once(
    desk: Desk, shared: bool
) -> None:
    @desk.locked("k", name="outer", shared=not shared)
    def outer() -> None:
        with lock("k", app=desk.app, timeout=60, shared=shared):
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
def test_callers_cannot_pass_what_the_lock_hands_over(
    desk: Desk, charge: LockedTask, name: str
) -> None:
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


def test_celerys_own_check_of_arguments_misses_nothing_and_asks_for_nothing_more(
    desk: Desk, charge: LockedTask
) -> None:
    charge.delay("42")
    with pytest.raises(TypeError):
        charge.delay()
    with pytest.raises(TypeError):
        charge.delay("42", "too many")
    assert desk.size() == 1
