"""The careless tasks under a lock, and nothing else: right until a worker is paused or dies.

A lock cannot stop a worker that goes on after its lease has ended, whoever made the lock.
"""

from __future__ import annotations

from celery_dlock import locked_task
from example_project.shop import careless, orders
from example_project.shop.app import app


@locked_task("stock:{sku}", app=app, on_contention="queue")
def reserve(order_id: int, sku: str) -> None:
    """Sells what is not there: a paused worker writes what it has read long ago."""
    order = careless.sell(order_id, sku)
    if order.state == "reserved":
        orders.publish(charge, order)


@locked_task("order:{order_id}", app=app, on_contention="queue")
def charge(order_id: int) -> None:
    """Takes the money twice: a worker died before it could write that it had."""
    careless.collect(order_id)


@locked_task(app=app, on_contention="skip")
def report(day: str) -> None:
    """Is written once, as long as nobody is paused."""
    careless.write(day)
