"""The shop's tasks. Read this first: lock, fence, look, work, fence, write; each effect once.

The fence is passed twice. The first time keeps out whoever held the lock before, so that what is
read now stays true; the second time refuses this run, if somebody has come after it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from celery_dlock import INJECTED, Lease, fencing, idempotency_key, locked_task
from example_project.shop import orders, provider, slow
from example_project.shop.app import app
from example_project.shop.models import Order, Report, Stock, Transaction
from example_project.shop.recovery import Watched


@locked_task("stock:{sku}", app=app, base=Watched, on_contention="queue")
def reserve(order_id: int, sku: str) -> None:
    """Take the item out of stock if one is left, and have it paid. Sells no item twice."""
    with Transaction.begin() as db:
        fencing.admit(db)
        left = db.get_one(Stock, sku).left
    slow.step("reserve")
    with Transaction.begin() as db:
        fencing.admit(db)
        order = db.get_one(Order, order_id)
        if fencing.once(db, f"reserve:{order_id}"):
            orders.decide(db, order, left)
    if order.state == "reserved":
        orders.publish(charge, order)


@locked_task("order:{order_id}", app=app, base=Watched, on_contention="queue")
def charge(order_id: int, *, lease: Lease = INJECTED) -> None:
    """Have the provider take the money. Takes it once. ``recovery`` explains the capitals."""
    with Transaction.begin() as db:
        fencing.admit(db)
        order = db.get_one(Order, order_id)
        order.payment = order.payment or idempotency_key("charge")
    if order.state != "reserved":
        return  # CHECK: paid by an earlier run, or called off
    lease.check()  # STOP: whoever has lost the lock does not call
    slow.step("charge")  # ... but may lose it here
    provider.charge(order_id, order.price, order.payment)  # IDEMPOTENT
    slow.step("charged")
    with Transaction.begin() as db:
        fencing.admit(db)
        if fencing.once(db, "charge"):
            db.get_one(Order, order_id).state = "paid"


@locked_task(["order:{order_id}", "stock:{sku}"], app=app, base=Watched, on_contention="queue")
def call_off(order_id: int, sku: str) -> None:
    """COMPENSATE: the money of an order that has its item goes back, and then the item."""
    with Transaction.begin() as db:
        fencing.admit(db)
        order = db.get_one(Order, order_id)
        if order.state in ("reserved", "paid"):
            order.state = "calling off"  # until all of it is done: a run may die on the way
    if order.state != "calling off":
        return
    slow.step("call_off")
    if order.payment:
        provider.cancel(order_id, order.payment)  # also a charge that is still on its way
    with Transaction.begin() as db:
        fencing.admit(db)
        if fencing.once(db, "call_off", resource=f"order:{order_id}"):
            db.get_one(Order, order_id).state = "called off"
            db.get_one(Stock, sku).left += 1


@locked_task(app=app, on_contention="skip")
def report(day: str | None = None) -> None:
    """The nightly report, written once however many schedulers ask for it."""
    day = day or str(datetime.now(UTC).date() - timedelta(days=1))
    slow.step("report")
    with Transaction.begin() as db:
        fencing.admit(db)
        if fencing.once(db, f"report:{day}"):
            db.add(Report.of(db, day))


@locked_task(app=app, on_contention="skip")
def remind() -> None:
    """Publish again what is open: a message may be lost before a worker has it, or with one."""
    orders.publish_open(reserve, charge, call_off)
