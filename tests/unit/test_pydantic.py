"""``pydantic=True``: a template over a model's field is the same for models and for their dicts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import celery
import pytest
from pydantic import BaseModel

from celery_dlock import ConfigurationError, Debounce, Ordered, Unique, current_lease, lock
from celery_dlock.runtime import runtime
from tests.services.desk import Desk

NOT_BEFORE = pytest.mark.skipif(
    tuple(map(int, celery.__version__.split(".")[:2])) < (5, 7),
    reason="models are published since Celery 5.7",
)


class Line(BaseModel):
    items: str = "shoes"


class Order(BaseModel):
    id: int
    of: UUID = UUID(int=7)
    at: datetime = datetime(2026, 11, 26, tzinfo=UTC)
    price: Decimal = Decimal("1.50")
    line: Line = Line()


def key(order: Order) -> str:
    lease_key = current_lease().key
    assert isinstance(order, Order)
    return lease_key


key.__annotations__["order"] = Order  # Celery 5.5 does not resolve the text of an annotation


def made(desk: Desk, template: Any, **options: Any) -> Any:
    return desk.locked(template, name="pay", pydantic=True, **options)(key)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "direct call": lambda task, order: task(order),
    "eager": lambda task, order: task.apply((order,)).get(),
    "keyword": lambda task, order: task(order=order),
}


@NOT_BEFORE
@pytest.mark.parametrize(
    "template",
    [".id}", "[id]}", ".of}", ".at}", ".price}", ".line.items}", ".line[items]}"],
)
def test_a_template_makes_one_key_of_a_model_and_of_its_dict(desk: Desk, template: str) -> None:
    task = made(desk, f"o:{{order{template}")
    order = Order(id=1)
    sent = order.model_dump(mode="json")

    keys = [way(task, given) for way in WAYS.values() for given in (order, sent)]
    for given in (order, sent):
        result = task.delay(given)
        desk.deliver()
        keys.append(result.get())

    assert len(set(keys)) == 1
    assert keys[0] != "o:"


def test_a_direct_call_takes_a_model_with_every_celery(desk: Desk) -> None:
    task = made(desk, "o:{order.id}")
    assert task(Order(id=1)) == task({"id": 1}) == "o:1"


@NOT_BEFORE
@pytest.mark.parametrize("by", [None, "{order.id}"])
def test_a_unique_call_of_a_model_is_that_of_its_dict(desk: Desk, by: Any) -> None:
    task = made(desk, "o:{order.id}", unique=Unique("done", by=by))
    first = task.delay(Order(id=1))
    assert task.delay(Order(id=1)).is_duplicate
    assert task.delay(Order(id=1).model_dump(mode="json")).id == first.id
    assert not task.delay(Order(id=2)).is_duplicate
    desk.deliver_all()
    assert first.get() == "o:1"


@NOT_BEFORE
def test_a_model_is_debounced_and_ordered_by_its_key(desk: Desk) -> None:
    task = made(desk, "o:{order.id}", unique=Debounce(delay=60, max_delay=60))
    assert task.delay(Order(id=1)).id == task.delay({"id": 1}).id
    ordered = desk.locked("n:{order.id}", name="n", pydantic=True, on_contention=Ordered())(key)
    with lock("n:1", app=desk.app):
        result = ordered.delay(Order(id=1))
        assert runtime(desk.app).backend.peek("n:1").waiting
    desk.deliver_all()
    assert result.get() == "n:1"


def test_a_field_that_the_message_does_not_have_is_an_error(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match=r"dict has no \.number"):
        made(desk, "o:{order.number}")({"id": 1})
