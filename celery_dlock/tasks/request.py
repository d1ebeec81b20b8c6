"""The worker's main process, where every delivery passes exactly once.

It mints the nonce of the delivery: a redelivered or rescheduled message may carry the header of
an older execution, and must never be taken for its owner. It notes the content type, which the
child does not get to see, so that a message is published again in its own serializer. For a task
whose message may wait in the store it notes the message as it came; the child has the same bytes
anyway, so this sends it little more than their names.
"""

from __future__ import annotations

import uuid
from typing import Any

from celery import signals
from celery.app.task import Context

from celery_dlock.contention import queueing
from celery_dlock.tasks.children import soon
from celery_dlock.tasks.claims import left_by
from celery_dlock.tasks.history import DELIVERY, History, identity
from celery_dlock.tasks.runtime import runtime
from celery_dlock.tasks.survivor import Survivor


class LockedRequest(Survivor):
    """A request that knows which delivery it is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        delivery = {"nonce": uuid.uuid4().hex, "content_type": self.content_type}
        if self.content_type and queueing(self._policy) is not None:
            delivery |= {
                "content_encoding": self.content_encoding,
                "headers": {k: v for k, v in self.message.headers.items() if k != DELIVERY},
                "properties": self.message.properties,
                "exchange": self.delivery_info["exchange"],
                "routing_key": self.delivery_info["routing_key"],
                "body": self.body if isinstance(self.body, bytes) else self.body.encode(),
            }
        self._request_dict[DELIVERY] = delivery


@signals.task_revoked.connect  # type: ignore[untyped-decorator]
def give_back_turn(
    sender: Any = None, request: Any = None, terminated: bool = False, **_: Any
) -> None:
    """A message that was called and is revoked, or has expired: the next one's turn comes at once.

    Such a message never reaches its task. One whose body is being killed is still at it, and gives
    back what it holds when its process is gone.
    """
    if terminated or not hasattr(sender, "lock_definition") or not isinstance(request, Context):
        return
    if History.read(request, identity(request)).key is not None:  # it was called
        turns = left_by(sender, request)
        soon(lambda: runtime(sender.app).manager.take_back(turns))
