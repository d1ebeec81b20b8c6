"""The task under a lock, and its fenced write."""

import time

from celery_dlock import fencing, locked_task
from flask_shop.models import Order, session


def ask_provider(order_id: int) -> None:
    """Stands for the payment provider. It takes its time, so that the lock can be seen."""
    time.sleep(5)


@locked_task("order:{order_id}", on_contention="queue")  # without app=, as shared_task
def charge(order_id: int) -> None:
    ask_provider(order_id)
    with session() as db, db.begin():
        fencing.admit(db)  # a worker that was paused and comes too late is refused
        if fencing.once(db, "charge"):  # a second task changes nothing
            order = db.get_one(Order, order_id)
            order.paid += order.amount
