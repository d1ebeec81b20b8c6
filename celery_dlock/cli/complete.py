"""What a shell offers behind a command: keys, and the ids of tasks that wait or are dead.

A shell asks while somebody types: it is answered soon or not at all, and nothing else is printed.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import islice
from typing import Any

import click
from celery.app.utils import find_app

from celery_dlock.core.state import task_id_of
from celery_dlock.inspection.overview import names_in_use
from celery_dlock.tasks.runtime import runtime

#: Seconds that a shell waits at most.
PATIENCE = 3.0

#: So many are offered, and so many are looked through.
OFFERED, LOOKED_THROUGH = 100, 5_000


def keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Keys that are in use."""
    return _offered(ctx, incomplete, _keys)


def waiting_tasks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Tasks with a message at the head of a queue."""
    return _offered(ctx, incomplete, _waiting)


def dead_tasks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Tasks with a dead message."""
    return _offered(ctx, incomplete, _dead)


def _keys(app: Any) -> Iterator[str]:
    for names in names_in_use(runtime(app).existing_store()):
        yield from names


def _waiting(app: Any) -> Iterator[str]:
    backend = runtime(app).existing_store()
    for names in names_in_use(backend, waiting=True):
        for state in backend.look(names):
            yield from (task_id_of(entry.task) for entry in state.waiting if entry.parked)


def _dead(app: Any) -> Iterable[str]:
    return [task_id_of(burial.dead.task) for burial in runtime(app).existing_store().dead(OFFERED)]


def _offered(
    ctx: click.Context, incomplete: str, all_: Callable[[Any], Iterable[str]]
) -> list[str]:
    """Those that begin as what was typed; none that a shell would have to quote."""
    found: list[str] = []

    def look() -> None:
        some = islice(all_(_app(ctx)), LOOKED_THROUGH)
        fitting = (text for text in some if text.startswith(incomplete) and text.isprintable())
        found.extend(islice(dict.fromkeys(fitting), OFFERED))

    _quietly(look)
    return sorted(found)


def _quietly(look: Callable[[], None]) -> None:
    """Run *look* for no longer than a shell waits, and swallow whatever it says."""

    def silently() -> None:
        with suppress(BaseException):  # whatever an application does as it is loaded
            look()

    thread = threading.Thread(target=silently, daemon=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        thread.start()
        thread.join(PATIENCE)


def _app(ctx: click.Context) -> Any:
    """Celery loads the application when a command runs; a shell only asks."""
    named = ctx.find_root().params.get("app")
    return find_app(named) if isinstance(named, str) else named
