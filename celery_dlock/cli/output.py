"""What the commands print: lines and tables for people, JSON for programs.

Keys and task ids are anybody's text, and none of it may steer the terminal that it is shown on:
escape sequences, line ends, marks that turn the direction of writing, and blanks that look like
nothing are written out, and nothing is read as markup. What is quoted so can be pasted into a shell
as it stands. A table is as wide as the terminal, and where there is none as wide as it is; where
the terminal is too narrow for keys and ids, its lines go on in the next one. For programs names
stay, and times are in UTC as ISO 8601 writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from celery_dlock.core.state import Mode
from celery_dlock.ops.event_text import lasting
from celery_dlock.ops.overview import Held, Line, instant
from celery_dlock.ops.plain_text import shown


def as_json(value: Any) -> str:
    """*value* for programs, in printable ASCII, which a terminal may have to show all the same."""
    return json.dumps(value, indent=2, default=lambda at: at.astimezone(UTC).isoformat())


#: Wider than any table: what is piped is cut by nobody.
_UNBOUNDED = 1_000_000

#: The longest of most durations, ``59 min 59 s``.
_DURATION = 11

#: Up to here no word is broken, so that what is seen can be copied: the id of a task.
_WHOLE = 36

#: The blanks between two columns.
_GAP = 2


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


def left(seconds: float) -> Text:
    """What remains of a lease, or for how long none of it has."""
    if seconds <= 0:
        return Text(f"expired {lasting(-seconds)}", style="red")
    return Text(lasting(seconds))


def plain_line(line: Line, now: datetime) -> dict[str, Any]:
    """One key as it was *now*, by the store's clock."""
    return {
        "key": line.key,
        "holders": [plain_holder(held, now) for held in line.holders],
        "woken": list(line.woken),
        "reserved": list(line.reserved),
        "cooling": [at for slot in line.cooling if (at := instant(slot.until)) > now],
        "hold": (hold := line.on_hold(now)) and asdict(hold),
        "waiting": line.waiting,
        "more_wait": line.more_wait,
        "oldest": line.oldest,
        "unreadable": line.unreadable or None,
    }


def plain_holder(held: Held, now: datetime) -> dict[str, Any]:
    """One holder; a reader has no token."""
    token = None if held.mode is Mode.SHARED else held.token
    return {**asdict(held), "token": token, "expired": held.expires <= now}
