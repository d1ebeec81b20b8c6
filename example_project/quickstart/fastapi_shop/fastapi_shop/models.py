"""The shop's data, in SQLite. ``python -m fastapi_shop.models`` creates the tables."""

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from celery_dlock import fencing

Transaction = sessionmaker(create_engine("sqlite:///shop.db"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    paid: Mapped[int] = mapped_column(default=0)


def create_tables() -> None:
    """Create the shop's tables and those of the fence. A larger project has a migration."""
    with Transaction.begin() as db:
        Base.metadata.create_all(db.connection())
        fencing.create_table(db)


if __name__ == "__main__":
    create_tables()
