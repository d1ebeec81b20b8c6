"""What all commands have in common: errors in one line, and a store that can be seen from here."""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import Any

import click

from celery_dlock.backends.base import Trait
from celery_dlock.cli.safe import one_line, shown
from celery_dlock.errors import ConfigurationError, DLockError
from celery_dlock.inspection.overview import Line
from celery_dlock.tasks.runtime import runtime


class Command(click.Command):
    """One that fails with a sentence, and never with a traceback."""

    #: How a line of its log begins.
    log_format = "%(message)s"

    def invoke(self, ctx: click.Context) -> Any:
        _log_in_lines(self.log_format)
        try:
            return super().invoke(ctx)
        except ConfigurationError as exc:
            hint = "; no application is named: celery -A shop dlock …" if _unnamed(ctx) else ""
            raise click.ClickException(one_line(str(exc)) + hint) from exc
        except DLockError as exc:
            raise click.ClickException(one_line(str(exc))) from exc
        except OSError as exc:
            if exc.errno == errno.EPIPE:  # whoever reads has read enough, which click knows
                raise
            _leave_unwritten()
            raise click.ClickException(one_line(str(exc))) from exc


class Service(Command):
    """One that stays: its log says when."""

    log_format = "%(asctime)s %(message)s"


def _unnamed(ctx: click.Context) -> bool:
    """Whether it is Celery's default application that is asked, most likely by mistake."""
    return ctx.find_root().params.get("app", "") is None


def app_of(ctx: click.Context) -> Any:
    """The application.

    Raises :exc:`click.ClickException` if its locks are in the memory of another process.
    """
    app = ctx.obj.app
    if Trait.MULTI_PROCESS not in runtime(app).backend.traits:
        raise click.ClickException(
            "these locks live in the memory of the worker's process and cannot be seen from here: "
            f"the store of dlock_url lacks the trait {Trait.MULTI_PROCESS}"
        )
    return app


def readable(found: Line) -> Line:
    """*found*, of which the store could say something.

    Raises :exc:`click.ClickException` if it cannot read that key.
    """
    if found.unreadable:
        why = f"the lock store answers, and cannot read {shown(found.key)}: {found.unreadable}"
        raise click.ClickException(one_line(why))
    return found


class _Lines(logging.Formatter):
    """A record as one harmless line."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        record.message = record.getMessage() + (f": {error}" if error else "")
        record.asctime = self.formatTime(record)
        return one_line(self.formatMessage(record))


def _leave_unwritten() -> None:
    """What was not written is not tried again as Python ends, which would exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _log_in_lines(form: str) -> None:
    """Where the application has set up no logging, warnings come without tracebacks.

    Those of drivers are no news to somebody who asks once; their errors are.
    """
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.addFilter(lambda record: record.levelno >= _LEAST.get(record.name, logging.ERROR))
        handler.setFormatter(_Lines(form))
        root.addHandler(handler)


_LEAST = {"celery_dlock": logging.WARNING}
