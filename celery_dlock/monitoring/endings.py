"""What a process has not sent yet is sent as it ends.

A prefork child says that it ends by a signal of Celery and leaves without Python's own way out.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any, Protocol
from weakref import WeakSet

from celery import signals

logger = logging.getLogger("celery_dlock")


class Ends(Protocol):
    """A sink with something to send."""

    def at_end(self) -> None:
        """Send it, within a moment."""


_open: WeakSet[Ends] = WeakSet()
os.register_at_fork(after_in_child=_open.clear)  # what the parent has to send is the parent's


def tell_end(sink: Ends) -> None:
    """Have ``sink.at_end()`` called as this process ends."""
    _open.add(sink)


def end(**_: Any) -> None:
    """Have all of them send it: this process ends."""
    for sink in list(_open):
        try:
            sink.at_end()
        except Exception:  # the others have something to send, too
            logger.exception("what %r had not sent is lost", sink)


signals.worker_process_shutdown.connect(end, weak=False)
atexit.register(end)
