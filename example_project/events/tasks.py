"""The shop's one task. Read this first: queue, lock, work, fence, write."""

from __future__ import annotations

import os
import time

from celery_dlock import Lease, Ordered, fencing, locked_task
from example_project.events import orders, provider
from example_project.events.app import app
from example_project.settings import FOLDER

DATABASE = FOLDER / "orders.db"


@locked_task(
    "order:{order_id}",
    app=app,
    # In the order of publishing; and the shop's broker forgets what a killed worker had taken.
    on_contention=Ordered(),
)
def apply_event(
    order_id: int,
    event_id: str,
    sequence: int,
    kind: str,
    amount: int,
    *,
    fencing_token: int,
    lease: Lease,
) -> None:
    """Apply one event to its order, after those before it and exactly once.

    However often the message is delivered, and whatever becomes of the workers.
    """
    started = time.monotonic()
    provider.tell(event_id)
    with orders.transaction(DATABASE) as db:
        fencing.admit(db)  # refused, if another worker has got the order in the meantime
        new = fencing.once(db, event_id)
        if new:
            orders.apply(db, order_id, sequence, kind, amount)
        run = orders.Run(
            event_id=event_id,
            order_id=order_id,
            token=fencing_token,
            worker=os.getpid(),
            held=not lease.lost,
            applied=new,
            started=started,
            ended=time.monotonic(),
        )
        orders.log(db, run)
