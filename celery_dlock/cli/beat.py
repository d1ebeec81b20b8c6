"""``dlock beat``: who leads, who stands by and what is due; and having another beat lead."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from celery_dlock.beat.leader import Status, reads_a_database
from celery_dlock.cli.command import Command, app_of, for_programs
from celery_dlock.cli.output import as_json
from celery_dlock.ops.action import this_person
from celery_dlock.ops.actions import step_down as stepping_down
from celery_dlock.ops.plain_text import one_line

#: Seconds between two looks at who leads.
LOOK = 0.2


@click.command(cls=Command, short_help="Show which beat leads, which stand by, and what is due.")
@for_programs
@click.option(
    "--step-down", is_flag=True, help="Hand the lead to another beat, and wait until it leads."
)
@click.option(
    "--timeout", default=30.0, show_default=True, help="Seconds to wait for the next leader."
)
@click.pass_context
def beat(ctx: click.Context, *, for_programs: bool, step_down: bool, timeout: float) -> None:
    """Show which beat leads and since when, which stand by, and what is due next.

    Exits with 1 if none leads, or if no other beat has taken over in time.
    """
    app = app_of(ctx)
    status, stepped_down = Status.of(app), None
    if step_down:
        stepped_down, status = _step_down(app, timeout)
    click.echo(as_json(_plain(status)) if for_programs else _lines(app, status, stepped_down))
    if status.leader is None:
        ctx.exit(1)


def _step_down(app: Any, timeout: float) -> tuple[str, Status]:
    """Ask the leader to go; who that was, and what is so when another one leads."""
    action = stepping_down(app)
    if not action.carry_out(this_person()):
        raise click.ClickException(action.nothing)
    leader = str(action.facts["leader"])
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        status = Status.of(app)
        if status.leader not in (None, leader):
            return leader, status
        time.sleep(LOOK)
    raise click.ClickException(f"{leader} was asked to step down, and no other beat leads yet")


def _plain(status: Status) -> dict[str, Any]:
    return {
        "key": status.key,
        "leader": status.leader,
        "since": status.since and status.since.isoformat(),
        "token": status.holder and status.holder.token,
        "standbys": list(status.standbys),
        "due": {name: due.isoformat() for name, due in status.dues()},
    }


#: What is told of entries of a database, which its scheduler reads when they come near.
_DATABASE = "(crontabs of the database that are due in more than two hours are not listed)"


def _lines(app: Any, status: Status, stepped_down: str | None) -> str:
    def shown(instant: datetime | None) -> str:
        return instant.astimezone(app.timezone).isoformat(" ", "seconds") if instant else ""

    leads = f"{status.leader}  since {shown(status.since)}" if status.leader else "no beat"
    names = max((len(name) for name in status.records), default=0)
    standbys = list(status.standbys)
    if stepped_down is not None and stepped_down not in standbys:
        standbys.append(f"{stepped_down}  has stepped down, and asks again in a moment")
    due = [f"{name:<{names}}  {shown(due)}" for name, due in status.dues()]
    rows = [
        ("leads", [leads]),
        ("stands by", standbys or ["no beat"]),
        ("next due", [*due, _DATABASE] if reads_a_database(app) else due),
    ]
    return "\n".join(
        f"{title if first == 0 else '':<11}{one_line(line)}"
        for title, lines in rows
        for first, line in enumerate(lines)
    )
