"""A delivery that ends while its task goes on tells that to the worker, and not where in the code.

Nor does Celery log it. Our own line names the key, the holder and the reason, where Celery's says
"ignored", a "retry" that is none, or that a task which was skipped has "succeeded".

For whatever a task raises, Celery copies the code of every frame, down to the position of each
instruction, writes a traceback, twice, and has the main process read some 40 kB. For a task that
only goes elsewhere that was more work than to park it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, cast

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import current_task
from celery.app import trace
from celery.app.task import Context
from celery.exceptions import TaskPredicate

from celery_dlock.core.event_log import tells

_MARK = "dlock_brief"

#: Where a request says that what became of it has been logged.
_LOGGED = "dlock_logged"

_SAID_BY_CELERY = (trace.LOG_IGNORED, trace.LOG_RETRY, trace.LOG_SUCCESS)


def briefly(gone: TaskPredicate) -> TaskPredicate:
    """*gone*, to be told without a traceback."""
    setattr(gone, _MARK, True)
    return gone


def logged(request: Context) -> None:
    """What becomes of the delivery of *request* has been logged, if anybody reads it."""
    if tells():
        setattr(request, _LOGGED, True)


def says_more(record: logging.LogRecord) -> bool:
    """Whether Celery's *record* is not about a delivery of which all is logged."""
    if record.msg not in _SAID_BY_CELERY or not current_task:
        return True
    request = current_task.request
    told: Any = record.args
    return not (request.id == told["id"] and vars(request).get(_LOGGED))


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
    trace.logger.addFilter(says_more)
