"""What people write by mistake is an error that names the task, what was written, and ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import celery_dlock
from celery_dlock import ConfigurationError, LockedTask, lock, locked_task
from celery_dlock.locks.definition import OPTIONS
from celery_dlock.locks.foreign import FOREIGN, FOREIGN_TO_BLOCKS, HELD
from celery_dlock.runtime import forget, runtime
from celery_dlock.tasks.block import OPTIONS as OPTIONS_OF_BLOCKS
from celery_dlock.worker.startup import check_decorators


def charge(order_id: str, amount: int) -> None: ...


def made(app: Celery, *key: Any, **options: Any) -> Any:
    decorate: Any = locked_task
    return decorate(*key, app=app, name="shop.charge", **options)(charge)


def error(make: Callable[[], object], kind: type[Exception] = ConfigurationError) -> str:
    with pytest.raises(kind) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize("call", ["delay", "apply", "__call__"])
def test_an_argument_that_is_missing_or_unknown_is_said_of_the_task(app: Celery, call: str) -> None:
    task = made(app, "order:{order_id}", unique="done")

    def called(*args: Any, **kwargs: Any) -> object:
        return (
            task.apply(args, kwargs).get()
            if call == "apply"
            else getattr(task, call)(*args, **kwargs)
        )

    assert error(lambda: called(1), TypeError).startswith("shop.charge() missing ")
    assert "'x'" in (said := error(lambda: called(1, 2, x=3), TypeError))
    assert said.startswith("shop.charge() got an unexpected keyword argument")


@pytest.mark.parametrize("name", FOREIGN)
def test_another_librarys_option_is_answered_with_ours(app: Celery, name: str) -> None:
    said = error(lambda: made(app, "order:{order_id}", **{name: {}}))
    assert said.startswith(f"task shop.charge: {name}= is an option of {FOREIGN[name][0]}; write ")
    assert "lock_" not in said.partition("write")[2]

    def with_base() -> object:
        app.task(base=LockedTask, name="shop.charge", **{name: {}})(charge)
        return app.finalize()

    if name != "shared":  # which is Celery's there: a task of this application only
        assert f"task shop.charge: {name}= is an option of {FOREIGN[name][0]}" in error(with_base)


@pytest.mark.parametrize("name", FOREIGN)
def test_what_an_answer_says_to_write_can_be_written(app: Celery, name: str) -> None:
    raw = FOREIGN[name][1]
    assert set(re.findall(r"\{p\}(\w+)=", raw)) <= set(OPTIONS)

    written = re.findall(r'(\w+)=("[^"]*"|[A-Z]\w+\([^()]*\))', raw.format(p=""))
    assert written or "(" not in raw
    for option, value in written:
        made(app, **{"key": "order:{order_id}", option: eval(value, vars(celery_dlock))})


def test_an_option_that_a_base_class_of_the_project_knows_is_its_own(app: Celery) -> None:
    class Ours(LockedTask):
        abstract = True
        timeout = 3
        limit = 5

    task = app.task(base=Ours, name="shop.charge", timeout=5, limit=7)(charge)
    assert (task.timeout, task.limit, task.lock_definition.access[0].limit) == (5, 7, 1)


def test_a_prefix_that_was_forgotten_is_an_error(app: Celery) -> None:
    app.task(base=LockedTask, name="shop.charge", key="order:{order_id}", ttl=5)(charge)
    assert error(app.finalize) == (
        "task shop.charge: key= is for @locked_task; with base=LockedTask write lock_key="
    )


def test_a_prefix_too_many_is_an_error(app: Celery) -> None:
    assert error(lambda: made(app, lock_ttl=5)) == (
        "task charge: lock_ttl= is for base=LockedTask; locked_task() takes ttl="
    )


def test_several_keys_are_written_as_a_list(app: Celery) -> None:
    said = "task charge: locked_task() takes one key; write several as a list, ['a', 'b']"
    assert error(lambda: made(app, "a", "b")) == said
    assert error(lambda: made(app, "a", key="b")) == said


@pytest.mark.parametrize("bare", [True, False])
def test_a_task_is_made_by_one_decorator(app: Celery, bare: bool) -> None:
    inner = app.task(charge)
    over: Any = locked_task
    said = error(lambda: over(inner) if bare else over("order:{order_id}", app=app)(inner))
    assert said.startswith(f"{inner.name} is a task already: remove its other decorator")


def test_nor_does_a_worker_start_with_another_one_over_it(app: Celery) -> None:
    inner = made(app, "order:{order_id}")
    check_decorators(SimpleNamespace(tasks=dict(app.tasks)))
    app.task(inner, name="shop.outer")
    app.finalize()

    said = error(lambda: check_decorators(app))
    assert said.startswith("task shop.outer: @locked_task already makes a task")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        (
            "order:{order_id",
            "write a field as {order_id}, and a literal brace twice",
        ),
        ("order:{order_id:05d}", 'as in key=lambda order_id: f"…{order_id:05d}"'),
    ],
)
def test_an_unreadable_template_is_told_what_to_write(app: Celery, key: str, hint: str) -> None:
    said = error(lambda: made(app, key))
    assert said.startswith(f"task shop.charge: lock key {key!r}: ")
    assert said.endswith(hint)


@pytest.mark.parametrize("field", ["{order_id}", "{order.id}", "{order[id]}", "{}", "{0}"])
def test_a_field_in_the_key_of_a_lock_is_an_f_forgotten(app: Celery, field: str) -> None:
    said = error(lambda: lock(["stock", f"order:{field}"], app=app))
    assert f"{field} in 'order:{field}' would be the same for all: put an f before" in said


def test_other_braces_in_the_key_of_a_lock_are_data(app: Celery) -> None:
    for key in ('{"a": 1}', "a{", "}", "%7Border_id%7D"):
        with lock(key, app=app) as lease:
            lease.check()


@pytest.mark.parametrize("key", [42, None])
def test_what_is_no_key_is_named(app: Celery, key: Any) -> None:
    assert error(lambda: lock(key, app=app)) == (
        f"lock() takes a text, or a list of them, got {key}"
    )


@pytest.mark.parametrize("name", FOREIGN_TO_BLOCKS)
def test_what_an_answer_about_a_block_says_to_write_is_an_option_of_it(name: str) -> None:
    hint = FOREIGN_TO_BLOCKS[name][1]
    outside_objects = re.sub(r"\(.*\)", "", hint.format(p=""))
    assert set(re.findall(r"(\w+)=", outside_objects)) <= set(OPTIONS_OF_BLOCKS)


@pytest.mark.parametrize("name", HELD)
def test_how_a_block_holds_its_key_is_said_by_the_key(app: Celery, name: str) -> None:
    said = error(lambda: lock("order:42", app=app, **{name: 3}))
    instead = HELD[name].format(p="")
    assert said == f"lock(): {name}= is an option of other locks; write {instead}"
    key = eval(instead.removeprefix("key="), vars(celery_dlock))
    with lock(key, app=app) as lease:
        lease.check()


def test_a_class_is_told_as_well_how_its_keys_are_held(app: Celery) -> None:
    class Limited(LockedTask):
        abstract = True
        lock_limit = 3

    app.task(base=Limited, name="shop.charge")(charge)

    assert error(app.finalize) == (
        'task shop.charge: lock_limit= is an option of other locks; write lock_key=Limit("mail", 3)'
    )


def test_a_word_that_celery_takes_as_well_is_never_taken_for_celerys(app: Celery) -> None:
    app.task_cls = "celery_dlock:LockedTask"

    assert "write key=Shared(" in error(lambda: made(app, "order:{order_id}", shared=True))


@pytest.mark.parametrize("option", ["nonsense=tiger", "socket_timeout=tiger"])
def test_the_option_of_a_redis_url_is_named_and_its_value_is_not(app: Celery, option: str) -> None:
    app.conf.dlock_url = f"redis://:tiger@localhost/2?{option}"
    forget(app)
    said = error(lambda: runtime(app))
    name = option.partition("=")[0]
    what = f"redis-py cannot use the option {name!r} of the URL of the lock store"
    assert said == f"Celery app 'unit': {what}"
