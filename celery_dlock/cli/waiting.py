"""``dlock waiting`` and ``dlock cancel``: who stands in the queue of a key, and who is to go."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from celery_dlock.cli import plain
from celery_dlock.cli.ask import agreed, document, yes
from celery_dlock.cli.command import Command, app_of, readable
from celery_dlock.cli.complete import keys, waiting_tasks
from celery_dlock.cli.safe import as_json, shown
from celery_dlock.cli.screen import lasting, name, put, table
from celery_dlock.inspection import hands
from celery_dlock.inspection.overview import InLine, Near, as_stored


@click.command(cls=Command)
@click.argument("key", shell_complete=keys)
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1), metavar="N")
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.pass_context
def waiting(ctx: click.Context, *, key: str, limit: int, for_programs: bool) -> None:
    """Show who waits for KEY.

    In the order in which their turns come. Exits with 1 when nobody does.
    """
    app = app_of(ctx)
    key = as_stored(app, key)
    found = Near.of(app, key, limit)
    readable(found.line)
    total = len(found.queue) + found.behind
    if for_programs:
        tasks = [plain.in_line(each) for each in found.queue]
        click.echo(as_json({"key": key, "total": total, "waiting": tasks}))
    elif found.queue:
        put(ctx, queue_table(found.queue, found.now))
        if found.behind:
            click.echo(f"{len(found.queue)} of {total}: --limit shows more", err=True)
    else:
        click.echo(f"nobody waits for {shown(key)}")
    ctx.exit(0 if total else 1)


@click.command(cls=Command)
@click.argument("task_id", shell_complete=waiting_tasks)
@yes
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.pass_context
def cancel(ctx: click.Context, *, task_id: str, yes: bool, for_programs: bool) -> None:
    """Have TASK_ID end as revoked instead of waiting on.

    A body that runs goes on, and a message that is in the broker still comes: for those there is
    `celery control revoke`. Exits with 1 when no message of it waits.
    """
    app = app_of(ctx)
    found = hands.find(app, [task_id])
    if found:
        where = ", ".join(shown(message.key) for message in found)
        question = f"Have {shown(task_id)}, which waits for {where}, end as revoked?"
        agreed(question, yes=yes, for_programs=for_programs)
    with document({"task_id": task_id}, "messages", for_programs=for_programs) as told:
        if not found:
            raise click.ClickException(f"no message of {shown(task_id)} waits in the lock store")
        for message in found:
            cancelled = _cancelled(app, message, say=not for_programs)
            told.append({"key": message.key, "task": message.task, "cancelled": cancelled})
    ctx.exit(0 if all(each["cancelled"] for each in told) else 1)


def _cancelled(app: Any, message: hands.Message, *, say: bool) -> bool:
    if hands.cancel(app, message):
        if say:
            click.echo(f"{shown(message.task_id)} is called to end as revoked")
        return True
    click.echo(
        f"{shown(message.task_id)} does not wait for {shown(message.key)} any more", err=True
    )
    return False


def queue_table(found: Iterable[InLine], now: datetime) -> Table:
    """Who waits, for people; *now* is the store's."""
    columns = (">", "TASK ID", ">>WAITS FOR", "HOW", "STATE")
    rows = [[str(number), *_row(each, now)] for number, each in enumerate(found, 1)]
    return table(*columns, rows=rows)


def _row(each: InLine, now: datetime) -> list[str | Text]:
    waits = lasting((now - each.arrived).total_seconds()) if each.arrived else ""
    # A place is kept as long as its task keeps asking; a message waits by itself.
    how = "message in the store" if each.parked else "asks from time to time"
    return [name(each.task_id), waits, how, _state(each, now)]


def _state(each: InLine, now: datetime) -> str:
    if each.called:
        return f"called to end: {each.ending}" if each.ending else "called: its turn has come"
    if each.until is None:
        return ""
    left = (each.until - now).total_seconds()
    if each.parked:
        return f"gives up in {lasting(left)}" if left > 0 else "is about to give up"
    return "" if left > 0 else f"has not asked for {lasting(-left)}"
