"""One key for one effect of one task, whatever happens to its message."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import pytest

from celery_dlock import ConfigurationError, LockLost, idempotency_key, lock
from tests.services.desk import Desk


def test_it_is_the_same_after_a_retry_a_wait_and_a_loss(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str) -> None:
        desk.ran.append(idempotency_key("charge"))
        if len(desk.ran) == 1:
            raise self.retry(countdown=0)
        if len(desk.ran) == 2:
            raise LockLost("order:42")

    charge.delay("42")
    with lock("order:42", app=desk.app):
        desk.deliver()
    desk.deliver_all()

    assert len(desk.ran) == 3
    assert len(set(desk.ran)) == 1


def test_it_works_in_a_task_without_a_lock(desk: Desk) -> None:
    @desk.app.task(name="plain", bind=True)
    def plain(self: Any) -> None:
        desk.ran.append(idempotency_key("charge"))
        if len(desk.ran) == 1:
            raise self.retry(countdown=0)

    plain.delay()
    desk.deliver_all()

    assert len(desk.ran) == 2
    assert len(set(desk.ran)) == 1


def test_another_task_or_effect_or_what_replaces_the_task_has_another(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", bind=True)
    def charge(self: Any, order: str, part: int = 0) -> Any:
        desk.ran.extend([idempotency_key("charge"), idempotency_key("mail")])
        if part == 1:
            return self.replace(charge.s(order))
        return None

    charge.delay("42", 1)
    charge.delay("42")
    desk.deliver_all()

    assert len(set(desk.ran)) == len(desk.ran) == 6
    assert {len(key) for key in desk.ran} == {36}
    assert {UUID(key).version for key in desk.ran} == {5}


def test_what_the_body_only_calls_belongs_to_its_task(desk: Desk) -> None:
    @desk.app.task(name="plain")
    def plain() -> str:
        return idempotency_key("charge")

    @desk.locked("mail:{order}", name="mail")
    def mail(order: str) -> str:
        return idempotency_key("charge")

    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> None:
        desk.ran.extend([idempotency_key("charge"), plain(), mail(order)])

    charge.delay("42")
    desk.deliver()

    assert len(desk.ran) == 3
    assert len(set(desk.ran)) == 1


def test_it_is_the_same_in_every_version(desk: Desk) -> None:
    @desk.app.task(name="plain")
    def plain() -> None:
        desk.ran.append(idempotency_key("charge"))

    plain.apply_async(task_id="task-1")
    desk.deliver()

    assert desk.ran == ["12e32dc6-5456-593e-92d8-033a4e291c17"]


def test_where_no_task_runs_there_is_none(desk: Desk) -> None:
    errors: list[Exception] = []

    def ask() -> None:
        with pytest.raises(ConfigurationError, match="no task with an id runs here") as caught:
            idempotency_key("charge")
        errors.append(caught.value)

    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    ask()
    charge("42")
    charge.delay("42")
    desk.deliver()

    assert len(errors) == 3


@pytest.mark.parametrize("effect", ["", None, 7])
def test_an_effect_has_a_name(effect: Any) -> None:
    with pytest.raises(ConfigurationError, match="a non-empty str"):
        idempotency_key(effect)


def test_a_direct_call_has_no_id_and_is_told_what_to_write(desk: Desk) -> None:
    @desk.locked("order:{order}", name="pay")
    def pay(order: str) -> str:
        return idempotency_key("charge")

    with pytest.raises(ConfigurationError, match=r"direct call has no task id: .*pay\.apply\(args"):
        pay("42")
    assert UUID(pay.apply(("42",)).get())
    assert desk.holders("order:42") == []
