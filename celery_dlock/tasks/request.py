"""The worker's main process, where every delivery passes exactly once.

It mints the nonce of the delivery: a redelivered or rescheduled message may carry the header of
an older execution, and must never be taken for its owner. It notes the content type, which the
child does not get to see, so that a message is published again in its own serializer.
"""

from __future__ import annotations

import uuid
from typing import Any

from celery.worker.request import Request

from celery_dlock.tasks.history import DELIVERY


class LockedRequest(Request):  # type: ignore[misc]
    """A request that knows which delivery it is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_dict[DELIVERY] = {
            "nonce": uuid.uuid4().hex,
            "content_type": self.content_type,
        }
