"""The shop's data, on SQLite or PostgreSQL.

A row is written under one lock at a time: stock under its own, an order under that of its item
until it has been decided whether there is one, and under its own lock afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from celery_dlock import fencing
from example_project.settings import ORDERS

engine = create_engine(ORDERS)
Transaction = sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Stock(Base):
    """How many there are of one item; *price* is in cents."""

    __tablename__ = "stock"

    sku: Mapped[str] = mapped_column(primary_key=True)
    price: Mapped[int]
    left: Mapped[int]


class Order(Base):
    """An order for one item: new, then sold out or reserved, then paid, calling off or called off.

    *payment* is the idempotency key under which the provider knows its payment.
    """

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]
    price: Mapped[int]
    state: Mapped[str] = mapped_column(default="new")
    payment: Mapped[str | None]


class Report(Base):
    """What had been paid by the end of a day."""

    __tablename__ = "reports"

    id: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[str]
    paid: Mapped[int]
    turnover: Mapped[int]

    @classmethod
    def of(cls, db: Session, day: str) -> Report:
        """Counted now."""
        sums = select(func.count(), func.coalesce(func.sum(Order.price), 0))
        paid, turnover = db.execute(sums.where(Order.state == "paid")).one()
        return cls(day=day, paid=paid, turnover=turnover)


class Alert(Base):
    """Something for people to look at."""

    __tablename__ = "alerts"

    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str]


def create(stock: Mapping[str, tuple[int, int]]) -> None:
    """Make the tables where they are missing, and *stock*: its price and number by its name."""
    Base.metadata.create_all(engine)
    with Transaction.begin() as db:
        fencing.create_table(db)
        for sku, (price, left) in stock.items():
            if db.get(Stock, sku) is None:
                db.add(Stock(sku=sku, price=price, left=left))


@event.listens_for(engine, "connect")
def _several_processes(connection: Any, record: object) -> None:
    if engine.dialect.name == "sqlite":
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA busy_timeout = 30000")
