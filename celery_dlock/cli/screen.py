"""Tables for people: as wide as the terminal, and where there is none as wide as they are.

Where the terminal is too narrow for the keys and ids of a table, its lines go on in the next one.

Every text goes through :func:`~celery_dlock.cli.safe.shown`; none of it is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from celery_dlock.cli.safe import shown

#: Wider than any table: what is piped is cut by nobody.
_UNBOUNDED = 1_000_000

#: The longest of most durations, ``59 min 59 s``.
_DURATION = 11

#: Up to here no word is broken, so that what is seen can be copied: the id of a task.
_WHOLE = 36

#: The blanks between two columns.
_GAP = 2

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
    width = console.width
    with console.capture() as captured:
        for thing in things:
            console.width = max(width, _narrowest(thing)) if isinstance(thing, Table) else width
            console.print(thing, crop=False)
    lines = captured.get().splitlines()
    click.echo("\n".join(line.rstrip() for line in lines), color=console.is_terminal)


def table(*columns: str, rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table whose numbers, in columns that begin with ``>``, stand at the right.

    Columns of durations begin with ``>>``: they keep their width while time goes on.
    A text that is too long for its column goes on in the next line: a key is there to be copied.
    """
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        right = column.startswith(">")
        title = column.lstrip(">")
        texts = [title, *(row[number].plain for row in cells)]
        widest = max(_DURATION if column.startswith(">>") else 0, *map(cell_len, texts))
        # No number is cut, for what is left of it would be another one.
        least = widest if right else _longest_word(texts)
        made.add_column(
            Text(title, style="bold"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=least == widest,
            min_width=least,
        )
    for row in cells:
        made.add_row(*row)
    return made


def _longest_word(texts: Iterable[str]) -> int:
    longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return min(longest, _WHOLE)


def _narrowest(drawn: Table) -> int:
    """Below that a column would be left out."""
    widths = [column.min_width or 0 for column in drawn.columns]
    return sum(widths) + _GAP * (len(widths) - 1)


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
