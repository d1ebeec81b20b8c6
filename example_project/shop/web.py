"""The web face: it writes down what is wanted, answers at once, and has the workers do it.

``flask --app example_project.shop.web run`` serves it. It needs no lock: it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from flask import Flask, abort, render_template, request, url_for
from sqlalchemy import select

from example_project.shop import models, orders, tasks
from example_project.shop.models import Alert, Order, Stock, Transaction

GOODS = {"lamp": (4900, 5), "chair": (12900, 2), "table": (39900, 1)}

Answer = tuple[dict[str, object], int, dict[str, str]]


def create_app(goods: Mapping[str, tuple[int, int]] = GOODS) -> Flask:
    """The application; in a shop that is new there are some *goods*, at a price in cents."""
    models.create(goods)
    web = Flask(__name__)
    web.add_url_rule("/", view_func=page)
    web.add_url_rule("/stock", view_func=stock)
    web.add_url_rule("/orders", view_func=order, methods=["POST"])
    web.add_url_rule("/orders/<int:order_id>", view_func=show)
    web.add_url_rule("/orders/<int:order_id>", view_func=call_off, methods=["DELETE"])
    return web


def order() -> Answer:
    """Order one item, by its ``sku``."""
    body = request.get_json(silent=True) or request.form
    wanted = body.get("sku") if hasattr(body, "get") else None
    with Transaction() as db:
        if not isinstance(wanted, str) or db.get(Stock, wanted) is None:
            abort(400, "there is no such item")
    placed = orders.place(wanted)
    orders.publish(tasks.reserve, placed)
    return _accepted(placed)


def show(order_id: int) -> dict[str, object]:
    """How far an order is."""
    return _as_json(_find(order_id))


def call_off(order_id: int) -> Answer:
    """Undo an order that has its item."""
    found = _find(order_id)
    if found.state not in ("reserved", "paid"):
        abort(409, f"an order that is {found.state} cannot be called off")
    orders.publish(tasks.call_off, found)
    return _accepted(found)


def stock() -> dict[str, int]:
    """How many there are of each item."""
    with Transaction() as db:
        return {item.sku: item.left for item in db.scalars(select(Stock).order_by(Stock.sku))}


def page() -> str:
    """Everything at a glance."""
    with Transaction() as db:
        return render_template(
            "shop.html",
            stock=db.scalars(select(Stock).order_by(Stock.sku)).all(),
            orders=db.scalars(select(Order).order_by(Order.id.desc()).limit(100)).all(),
            alerts=db.scalars(select(Alert).order_by(Alert.id.desc()).limit(20)).all(),
        )


def _find(order_id: int) -> Order:
    with Transaction() as db:
        return db.get(Order, order_id) or abort(404)


def _accepted(order: Order) -> Answer:
    return _as_json(order), 202, {"Location": url_for("show", order_id=order.id)}


def _as_json(order: Order) -> dict[str, object]:
    return {"id": order.id, "sku": order.sku, "price": order.price, "state": order.state}
