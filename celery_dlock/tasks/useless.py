"""A message that was called, and that this worker can do nothing with.

Celery discards it: the task is not known here, or the message may not or cannot be read. The
store still has it and would call it for ever, so after some such calls, by which a worker of
another version has had its chances, it is put on the list of the dead and the next one is called.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from celery_dlock.core.state import Cause
from celery_dlock.tasks.history import HISTORY, identity_in
from celery_dlock.tasks.runtime import runtime

logger = logging.getLogger("celery_dlock")


def bury_unknown(sender: Any, message: Any, name: str = "", **_: Any) -> None:
    """Receives ``task_unknown``."""
    _bury(sender.app, message, name, Cause.UNKNOWN_TASK)


def bury_rejected(sender: Any, message: Any, **_: Any) -> None:
    """Receives ``task_rejected``."""
    _bury(sender.app, message, "", Cause.UNREADABLE)


class BuryUndecodable(bootsteps.Step):  # type: ignore[misc]
    """Hears of what cannot be decoded or unpacked: Celery acknowledges it and sends no signal."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        discard = parent.on_decode_error

        def discard_and_bury(message: Any, exc: Exception) -> None:
            discard(message, exc)
            try:
                _bury(parent.app, message, "", Cause.UNREADABLE)
            except Exception:  # nor may what a receiver of a signal raises end the worker's loop
                logger.exception("a message that cannot be decoded is called again")

        parent.on_decode_error = discard_and_bury


def _bury(app: Any, message: Any, name: str, cause: Cause) -> None:
    headers = message.headers or {}
    past = headers.get(HISTORY)
    key = past.get("key") if isinstance(past, dict) else None
    if isinstance(key, str) and "id" in headers:
        runtime(app).wake.bury(key, identity_in(headers), name, cause)
