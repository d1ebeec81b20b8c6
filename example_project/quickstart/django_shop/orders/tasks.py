"""The task under a lock, and its fenced write."""

import time

from django.db import connection, transaction
from django.db.models import F

from celery_dlock import fencing, locked_task
from orders.models import Order


def ask_provider(order_id: int) -> None:
    """Stands for the payment provider. It takes its time, so that the lock can be seen."""
    time.sleep(5)


@locked_task("order:{order_id}", on_contention="queue")
def charge(order_id: int) -> None:
    ask_provider(order_id)
    with transaction.atomic():
        fencing.admit(connection)  # a worker that was paused and comes too late is refused
        if fencing.once(connection, "charge"):  # a second task changes nothing
            Order.objects.filter(pk=order_id).update(paid=F("paid") + F("amount"))
