"""The shop's one task. Read this first: lock, work, fence, write."""

from __future__ import annotations

import os
import time

from celery_dlock import FullJitter, Lease, Reschedule, fencing, locked_task
from example_project import orders, provider
from example_project.app import FOLDER, app

DATABASE = FOLDER / "orders.db"


@locked_task(
    "order:{order_id}",
    app=app,
    on_contention=Reschedule(backoff=FullJitter(base=0.05, cap=0.5)),
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
    """Apply one event to its order, exactly once however often the message is delivered."""
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
