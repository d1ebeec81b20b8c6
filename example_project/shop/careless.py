"""The same tasks without lock and fence, as they are often written: look, work, write.

Each looks first whether it has been done, and each is right as long as it runs alone.
"""

# mypy: allow-untyped-decorators

from __future__ import annotations

from sqlalchemy import select

from example_project.shop import orders, provider, slow
from example_project.shop.app import app
from example_project.shop.models import Order, Report, Stock, Transaction


@app.task
def reserve(order_id: int, sku: str) -> None:
    """Sells what is not there: several see the last one, and each writes that none is left."""
    order = sell(order_id, sku)
    if order.state == "reserved":
        orders.publish(charge, order)


@app.task
def charge(order_id: int) -> None:
    """Takes the money twice: the order is marked as paid only when it has been."""
    collect(order_id)


@app.task
def report(day: str) -> None:
    """Is written twice: two schedulers see that there is none yet."""
    write(day)


def sell(order_id: int, sku: str) -> Order:
    with Transaction() as db:
        order, left = db.get_one(Order, order_id), db.get_one(Stock, sku).left
    if order.state != "new":
        return order
    slow.step("reserve")
    with Transaction.begin() as db:
        order = db.get_one(Order, order_id)
        orders.decide(db, order, left)
    return order


def collect(order_id: int) -> None:
    with Transaction() as db:
        order = db.get_one(Order, order_id)
    if order.state != "reserved":
        return
    slow.step("charge")
    provider.charge(order_id, order.price)
    slow.step("charged")
    with Transaction.begin() as db:
        db.get_one(Order, order_id).state = "paid"


def write(day: str) -> None:
    with Transaction() as db:
        written = db.scalars(select(Report).where(Report.day == day)).first()
    if written:
        return
    slow.step("report")
    with Transaction.begin() as db:
        db.add(Report.of(db, day))
