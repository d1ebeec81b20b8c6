"""``dlock ls``: what is locked, by whom and for how long, and who waits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click
from rich.table import Table
from rich.text import Text

from celery_dlock.cli import plain
from celery_dlock.cli.command import Command, app_of
from celery_dlock.cli.safe import as_json, shown
from celery_dlock.cli.screen import lasting, left, name, put, table
from celery_dlock.core.state import Mode
from celery_dlock.inspection.overview import Held, Line, Selection, foremost

COLUMNS = ("KEY", "HOLDER", ">>HELD FOR", ">>LEASE LEFT", ">TOKEN", ">WAITING", ">>OLDEST WAIT")


@click.command(cls=Command)
@click.option("--match", default="", metavar="TEXT", help="Only keys with TEXT in their name.")
@click.option("--waiting", is_flag=True, help="Only keys that somebody waits for.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), metavar="N")
@click.option("--all", "all_", is_flag=True, help="All of them, however many there are.")
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.pass_context
def ls(
    ctx: click.Context, *, match: str, waiting: bool, limit: int, all_: bool, for_programs: bool
) -> None:
    """List the keys that are held or waited for.

    Those first where a message waits longest, then those that are held longest. One that cannot be
    read comes before them.
    """
    found = foremost(app_of(ctx), None if all_ else limit, match=match, waiting=waiting)
    if for_programs:
        keys = [plain.line(line, found.now) for line in found.lines]
        click.echo(as_json({"total": found.total, "keys": keys}))
        return
    if not found.lines:
        which = f"no key with {shown(match)} in its name" if match else "no key"
        click.echo(f"{which} is waited for" if waiting else f"{which} is held or waited for")
        return
    put(ctx, lines_table(found))
    if found.total > len(found.lines):
        those = f"{len(found.lines)} of {found.total} keys"
        click.echo(f"{those}: --limit and --all show more, --match fewer", err=True)


def lines_table(found: Selection) -> Table:
    """What was *found* for people: a row for each holder; its key stands in the first of them."""
    return table(*COLUMNS, rows=[row for line in found.lines for row in _rows(line, found.now)])


def _rows(line: Line, now: datetime) -> Iterator[list[str | Text]]:
    oldest = lasting((now - line.oldest).total_seconds()) if line.oldest else ""
    queue = [str(line.waiting or ""), oldest]
    if line.unreadable:
        yield [name(line.key), Text("cannot be read", style="red"), "", "", "", "", ""]
    elif not line.holders:
        who = Text("called: ") + name(line.called[0]) if line.called else Text("nobody")
        yield [name(line.key), who, "", "", "", *queue]
    for number, held in enumerate(line.holders):
        first = number == 0
        yield [
            name(line.key) if first else "",
            *holding(held, now),
            *(queue if first else ("", "")),
        ]


def holding(held: Held, now: datetime) -> list[str | Text]:
    """Who it is, for how long, how long its lease still goes, and its token."""
    return [
        name(held.task_id),
        lasting((now - held.since).total_seconds()),
        left((held.expires - now).total_seconds()),
        "reads" if held.mode is Mode.SHARED else str(held.token),
    ]
