"""A delivery that ends while its task goes on tells that to the worker, and not where in the code.

For whatever a task raises, Celery copies the code of every frame, down to the position of each
instruction, writes a traceback, twice, and has the main process read some 40 kB. For a task that
only goes elsewhere that was more work than to park it.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery.app import trace
from celery.exceptions import TaskPredicate

_MARK = "dlock_brief"


def briefly(gone: TaskPredicate) -> TaskPredicate:
    """*gone*, to be told without a traceback."""
    setattr(gone, _MARK, True)
    return gone


class BriefExceptionInfo(ExceptionInfo):  # type: ignore[misc]
    """As Celery makes it, but for what is to be told briefly."""

    def __init__(self, exc_info: Any = None, internal: bool = False) -> None:
        kind, exception, _ = exc_info or cast("Any", sys.exc_info())
        if not getattr(exception, _MARK, False):
            super().__init__(exc_info, internal)
            return
        self.type, self.internal = kind, internal
        self.traceback = f"{kind.__name__}: {exception}"
        self.exception = ExceptionWithTraceback(exception, self.traceback)


def tell_briefly() -> None:
    """From now on in this process, and in those that it forks; Celery has no other place for it."""
    trace.ExceptionInfo = BriefExceptionInfo
