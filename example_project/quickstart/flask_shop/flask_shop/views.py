"""The web face of the shop."""

from typing import Any

from flask import Blueprint, abort, request

from celery_dlock import BackendUnavailable, LockContended, fencing, lock
from flask_shop.models import Order, session
from flask_shop.tasks import charge

orders = Blueprint("orders", __name__, url_prefix="/orders")


@orders.post("")
def create() -> dict[str, Any]:
    with session() as db, db.begin():
        order = Order(amount=int(request.args["amount"]))
        db.add(order)
        db.flush()
        order_id = order.id
    charge.delay(order_id)  # after the commit
    return show(order_id)


@orders.get("/<int:order_id>")
def show(order_id: int) -> dict[str, Any]:
    with session() as db:
        order = db.get(Order, order_id) or abort(404)
        return {"id": order.id, "amount": order.amount, "paid": order.paid}


@orders.post("/<int:order_id>/charge")
def charge_again(order_id: int) -> tuple[dict[str, Any], int]:
    """The customer presses the button twice: the second task waits for the first."""
    return {"task": charge.delay(order_id).id}, 202


@orders.post("/<int:order_id>/refund")
def refund(order_id: int) -> dict[str, Any]:
    """Takes the lock of the order's tasks, or answers at once who has it."""
    with lock(f"order:{order_id}", timeout=0), session() as db, db.begin():
        fencing.admit(db)
        db.get_one(Order, order_id).paid = 0
    return show(order_id)


@orders.errorhandler(LockContended)
def is_taken(taken: LockContended) -> tuple[dict[str, Any], int]:
    """The answer of every view whose lock another one has: who it is."""
    return {"error": str(taken), "holder": taken.holder}, 409


@orders.errorhandler(BackendUnavailable)
def is_away(away: BackendUnavailable) -> tuple[dict[str, Any], int]:
    """The answer while the lock store is down. Tasks need none: they are rescheduled."""
    return {"error": "try again later"}, 503
