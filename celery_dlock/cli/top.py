"""``dlock top``: the keys that somebody waits for or holds longest, as it changes."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from celery_dlock.cli.command import Command, app_of
from celery_dlock.cli.ls import lines_table
from celery_dlock.cli.safe import one_line
from celery_dlock.cli.screen import put, screen
from celery_dlock.errors import BackendUnavailable
from celery_dlock.inspection.overview import Selection, foremost

#: Lines of the screen that are no keys; and the keys that are shown where there is no screen.
AROUND, PIPED = 4, 50


@click.command(cls=Command)
@click.option("--every", default=1.0, show_default=True, type=click.FloatRange(0.1), metavar="S")
@click.option("--match", default="", metavar="TEXT", help="Only keys with TEXT in their name.")
@click.option("--waiting", is_flag=True, help="Only keys that somebody waits for.")
@click.pass_context
def top(ctx: click.Context, *, every: float, match: str, waiting: bool) -> None:
    """Watch the keys until Ctrl-C.

    They are looked at each S seconds, more rarely if a look takes longer than that; where there is
    no terminal, once.

    Those first where a message waits longest, then those that are held longest. Each look goes
    over all keys in use.
    """
    app, console = app_of(ctx), screen(ctx)

    def look(limit: int) -> Selection:
        return foremost(app, limit, match=match, waiting=waiting)

    if console.is_terminal:
        _watch(console, look, every)
    else:
        put(ctx, _shown(look(PIPED)))


def _watch(console: Console, look: Any, every: float) -> None:
    """Show what *look* finds until somebody says that it is enough."""
    last: RenderableType = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                began = time.monotonic()
                try:
                    last = _shown(look(max(1, console.height - AROUND)))
                    head = Text(f"{_now()}  each {every:g} s, Ctrl-C ends", style="dim")
                except BackendUnavailable as exc:
                    # What was seen last stays, so that it can still be read.
                    head = Text(f"{_now()}  {one_line(str(exc))}", style="bold red")
                live.update(Group(head, "", last), refresh=True)
                # A store with very many keys is not kept busy by this alone.
                time.sleep(max(every, time.monotonic() - began))
    except KeyboardInterrupt:
        pass


def _shown(found: Selection) -> RenderableType:
    keys = f"{len(found.lines)} of {found.total} keys"
    return Group(lines_table(found), Text(keys, style="dim"))


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
