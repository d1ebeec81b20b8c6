"""Counts what a side has left behind, in the shop's database and in the provider's books."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import func, select

from example_project import journal
from example_project.compare.figures import Figures
from example_project.settings import FOLDER
from example_project.shop import provider
from example_project.shop.models import Alert, Order, Report, Stock, Transaction


def count(there: int, day: str) -> Figures:
    """The figures of the shop of this process, where *there* were so many items before."""
    charges = provider.charges()
    with Transaction() as db:
        sold = db.scalars(select(Order).where(Order.state.in_(("reserved", "paid")))).all()
        left = db.scalars(select(func.sum(Stock.left))).one()
        reports = db.scalars(select(Report).where(Report.day == day)).all()
        alerts = db.scalars(select(Alert)).all()
    return Figures(
        there=there,
        sold=len(sold),
        left=left,
        charged_twice=sum(n > 1 for n in Counter(order_id for order_id, _ in charges).values()),
        owed=sum(order.price for order in sold),
        charged=sum(amount for _, amount in charges),
        reports=len(reports),
        refused=sum(entry["event"] == "StaleRejected" for entry in journal.read(FOLDER)),
        alerts=len(alerts),
    )
