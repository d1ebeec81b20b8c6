"""The task under a lock, and its fenced write."""

import time
from uuid import UUID, uuid5

from celery_dlock import Queue, current_lease, fencing, locked_task
from fastapi_shop.celery import app
from fastapi_shop.models import Order, Transaction

CHARGES = UUID("5d6f0c0e-3b6f-4c5e-9d0e-0f2d8a7b6c41")  # made once, with uuid4()


def ask_provider(order_id: int, idempotency_key: str) -> None:
    """Stands for the payment provider, which charges once for a key. It takes its time, so that
    the lock can be seen.
    """
    time.sleep(5)


# With keep=True another worker goes on if this one is killed.
@locked_task("order:{order_id}", app=app, on_contention=Queue(keep=True), time_limit=60)
def charge(order_id: int) -> None:
    with Transaction.begin() as db:
        fencing.admit(db)  # from now on who had the order before cannot write
    current_lease().check()  # not for an order that another one has by now
    # Of the order and not of the task: a second task asks for the same charge.
    ask_provider(order_id, idempotency_key=str(uuid5(CHARGES, f"order {order_id}")))
    with Transaction.begin() as db:
        fencing.admit(db)  # a worker that was paused and comes too late is refused
        if fencing.once(db, "charge"):  # a second task changes nothing
            order = db.get_one(Order, order_id)
            order.paid += order.amount
