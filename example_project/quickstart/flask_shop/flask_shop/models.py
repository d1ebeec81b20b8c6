"""The shop's data, in the database of the current application."""

from flask import Flask, current_app
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from celery_dlock import fencing


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    paid: Mapped[int] = mapped_column(default=0)


def init_app(app: Flask) -> None:
    app.extensions["engine"] = create_engine(app.config["DATABASE"])
    app.cli.command("init-db")(create_tables)


def create_tables() -> None:
    """Create the shop's tables and those of the fence. A larger project has a migration."""
    with current_app.extensions["engine"].begin() as db:
        Base.metadata.create_all(db)
        fencing.create_table(db)


def session() -> Session:
    return Session(current_app.extensions["engine"])
