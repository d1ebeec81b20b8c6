"""Orders are written down first and published then, and published again while they are open."""

from __future__ import annotations

from typing import Any

from celery import Task
from sqlalchemy import select
from sqlalchemy.orm import Session

from example_project.shop.models import Order, Stock, Transaction


def place(sku: str) -> Order:
    """Write an order down; whoever calls has its task published."""
    with Transaction.begin() as db:
        order = Order(sku=sku, price=db.get_one(Stock, sku).price)
        db.add(order)
    return order


def decide(db: Session, order: Order, left: int) -> None:
    """Write down what follows from *left*, the number that was read before."""
    if left > 0:
        db.get_one(Stock, order.sku).left = left - 1
        order.state = "reserved"
    else:
        order.state = "sold out"


def publish(task: Task, order: Order) -> None:
    """Ask for one step of *order*; asked twice, it has the same id."""
    name = task.name.rpartition(".")[2]
    wanted: dict[str, Any] = {"order_id": order.id}
    if name in ("reserve", "call_off"):
        wanted["sku"] = order.sku
    task.apply_async(kwargs=wanted, task_id=f"{name}:{order.id}")


def publish_open(reserve: Task, charge: Task, call_off: Task | None = None) -> None:
    """Ask again for the next step of every order that waits for one. Duplicates do no harm."""
    due = {"new": reserve, "reserved": charge}
    if call_off is not None:
        due["calling off"] = call_off
    with Transaction() as db:
        waiting = db.scalars(select(Order).where(Order.state.in_(due))).all()
    for order in waiting:
        publish(due[order.state], order)
