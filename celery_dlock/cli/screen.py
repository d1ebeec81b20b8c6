"""Tables for people: as wide as the terminal, and where there is none as wide as they are.

Every text goes through :func:`~celery_dlock.cli.safe.shown`; none of it is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from celery_dlock.cli.safe import shown

#: Wider than any table: what is piped is cut by nobody.
_UNBOUNDED = 1_000_000

#: The longest of most durations, ``59 min 59 s``.
_DURATION = 11

#: Seconds of a day, an hour and a minute, with the one below.
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def screen(ctx: click.Context) -> Console:
    """Where the command of *ctx* prints."""
    plain = bool(getattr(ctx.obj, "no_color", False)) or None
    console = Console(no_color=plain, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def put(ctx: click.Context, *things: RenderableType) -> None:
    """Print *things*, without blanks at the ends of lines."""
    console = screen(ctx)
    with console.capture() as captured:
        for thing in things:
            console.print(thing)
    lines = captured.get().splitlines()
    click.echo("\n".join(line.rstrip() for line in lines), color=console.is_terminal)


def table(*columns: str, rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table whose numbers, in columns that begin with ``>``, stand at the right.

    Columns of durations begin with ``>>``: they keep their width while time goes on.
    A text that is too long for its column goes on in the next line: a key is there to be copied.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        made.add_column(
            Text(column.lstrip(">"), style="bold"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
            min_width=_DURATION if column.startswith(">>") else None,
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def name(text: str, style: str = "") -> Text:
    """A key or an id, harmless."""
    return Text(shown(text), style=style)


def lasting(seconds: float) -> str:
    """A duration in its two largest units, rounded down."""
    whole = max(0, int(seconds))
    for size, unit, below, smaller in _UNITS:
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def left(seconds: float) -> Text:
    """What remains of a lease, or for how long none of it has."""
    if seconds <= 0:
        return Text(f"lapsed {lasting(-seconds)}", style="red")
    return Text(lasting(seconds))
