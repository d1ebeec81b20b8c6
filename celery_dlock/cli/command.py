"""What all commands share: options, errors in one line, a store that is seen from here, completion.

A shell offers keys, and the ids of tasks that wait or are dead. It asks while somebody types: it is
answered soon or not at all, and nothing else is printed.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import chain, islice
from typing import Any

import click
from celery.app.utils import find_app

from celery_dlock.core.state import task_id_of
from celery_dlock.errors import ConfigurationError, DLockError
from celery_dlock.ops.overview import Line, names_in_use
from celery_dlock.ops.plain_text import one_line, shown
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import Trait

Option = Callable[[Any], Any]

#: ``--json``.
for_programs: Option = click.option(
    "--json", "for_programs", is_flag=True, help="Print JSON, for programs."
)


def limit(default: int, most: int | None = None) -> Option:
    """``--limit``, of how much is shown."""
    allowed = click.IntRange(1, most)
    return click.option("--limit", default=default, show_default=True, type=allowed, metavar="N")


class Command(click.Command):
    """One that fails with a sentence, and never with a traceback."""

    #: How a line of its log begins.
    log_format = "%(message)s"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _harmless():
            try:
                return super().parse_args(ctx, args)
            except ValueError as exc:  # what no file can be called
                raise click.UsageError(str(exc), ctx) from exc

    def invoke(self, ctx: click.Context) -> Any:
        _log_in_lines(self.log_format)
        with _harmless():
            try:
                return super().invoke(ctx)
            except ConfigurationError as exc:
                # Celery's default application is asked, most likely by mistake.
                unnamed = ctx.find_root().params.get("app", "") is None
                hint = "; no application is named: celery -A shop dlock …" if unnamed else ""
                raise click.ClickException(f"{exc}{hint}") from exc
            except (DLockError, UnicodeEncodeError) as exc:  # half a character is in no store
                raise click.ClickException(str(exc)) from exc
            except OSError as exc:
                if exc.errno == errno.EPIPE:  # whoever reads has read enough, which click knows
                    raise
                _leave_unwritten()
                raise click.ClickException(str(exc)) from exc


@contextmanager
def _harmless() -> Iterator[None]:
    """An error is one line, whatever texts of others are in it."""
    try:
        yield
    except click.UsageError as exc:
        raise click.UsageError(one_line(exc.format_message()), exc.ctx) from exc
    except click.ClickException as exc:
        raise click.ClickException(one_line(exc.format_message())) from exc


class Service(Command):
    """One that stays: its log says when."""

    log_format = "%(asctime)s %(message)s"


def app_of(ctx: click.Context) -> Any:
    """The application.

    Raises :exc:`click.ClickException` if its locks are in the memory of another process.
    """
    app = ctx.obj.app
    if Trait.MULTI_PROCESS not in runtime(app).backend.traits:
        raise click.ClickException(
            "these locks live in the memory of the worker's process and cannot be seen from here: "
            "set dlock_url to another store, such as sqlite:///dlock.db"
        )
    return app


def readable(line: Line) -> Line:
    """*line*, of which the store could say something.

    Raises :exc:`click.ClickException` if it cannot read that key.
    """
    if line.unreadable:
        why = f"the lock store answers, and cannot read {shown(line.key)}: {line.unreadable}"
        raise click.ClickException(why)
    return line


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
        handler.setLevel(logging.WARNING)
        handler.addFilter(lambda at: at.name == "celery_dlock" or at.levelno >= logging.ERROR)
        handler.setFormatter(_Lines(form))
        root.addHandler(handler)


#: Seconds that a shell waits at most.
COMPLETION_TIMEOUT = 3.0

#: So many are offered, and so many are looked through.
OFFERED, LOOKED_THROUGH = 100, 5_000


def keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Keys that are in use."""
    return _offered(
        ctx,
        incomplete,
        lambda app: chain.from_iterable(names_in_use(runtime(app).existing_store())),
    )


def waiting_tasks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Tasks with a message at the head of a queue."""

    def waiting(app: Any) -> Iterator[str]:
        backend = runtime(app).existing_store()
        for names in names_in_use(backend, waiting=True):
            for state in backend.look(names):
                yield from (task_id_of(entry.task) for entry in state.waiting if entry.parked)

    return _offered(ctx, incomplete, waiting)


def dead_tasks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Tasks with a dead message."""

    def dead(app: Any) -> Iterator[str]:
        letters = runtime(app).existing_store().dead(OFFERED)
        return (task_id_of(letter.dead.task) for letter in letters)

    return _offered(ctx, incomplete, dead)


def _offered(
    ctx: click.Context, incomplete: str, all_: Callable[[Any], Iterable[str]]
) -> list[str]:
    """Those that begin as what was typed; none that a shell would have to quote."""
    offered: list[str] = []

    def look() -> None:
        some = islice(all_(_app(ctx)), LOOKED_THROUGH)
        fitting = (text for text in some if text.startswith(incomplete) and text.isprintable())
        offered.extend(islice(dict.fromkeys(fitting), OFFERED))

    _quietly(look)
    return sorted(offered)


def _quietly(look: Callable[[], None]) -> None:
    """Run *look* for no longer than a shell waits, and swallow whatever it says."""

    def silently() -> None:
        with suppress(BaseException):  # whatever an application does as it is loaded
            look()

    thread = threading.Thread(target=silently, daemon=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        thread.start()
        thread.join(COMPLETION_TIMEOUT)


def _app(ctx: click.Context) -> Any:
    """Celery loads the application when a command runs; a shell only asks."""
    named = ctx.find_root().params.get("app")
    return find_app(named) if isinstance(named, str) else named
