"""``dlock beat``: who leads, and having another one lead."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from celery_dlock.beat.status import Status
from celery_dlock.cli.command import Command, app_of
from celery_dlock.cli.safe import as_json, one_line
from celery_dlock.tasks.runtime import runtime

#: Seconds between two looks at who leads.
LOOK = 0.2


@click.command(cls=Command, short_help="Show which beat leads, which stand by, and what is due.")
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.option("--hand-over", is_flag=True, help="Have another beat lead, and wait until it does.")
@click.option(
    "--timeout", default=30.0, show_default=True, help="Seconds to wait for the hand-over."
)
@click.pass_context
def beat(ctx: click.Context, *, for_programs: bool, hand_over: bool, timeout: float) -> None:
    """Show which beat leads since when, which stand by, and what is due next.

    Exits with 1 when none leads, and when no other one has taken over in time.
    """
    app = app_of(ctx)
    status = Status.of(app)
    if hand_over:
        status = _hand_over(app, status, timeout)
    click.echo(as_json(_plain(status)) if for_programs else _lines(status, app.timezone))
    if status.leader is None:
        ctx.exit(1)


def _hand_over(app: Any, before: Status, timeout: float) -> Status:
    """Ask the leader of *before* to go; what is so when another one leads."""
    if before.leader is None:
        raise click.ClickException("no beat leads")
    if not before.standbys:
        raise click.ClickException(f"no beat stands by to take over from {before.leader}")
    if not before.ask_to_hand_over(runtime(app).backend):
        raise click.ClickException(f"{before.leader} does not lead any more")
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        status = Status.of(app)
        if status.leader not in (None, before.leader):
            return status
        time.sleep(LOOK)
    raise click.ClickException(f"{before.leader} was asked to hand over, and none leads instead")


def _plain(status: Status) -> dict[str, Any]:
    return {
        "key": status.key,
        "leader": status.leader,
        "since": status.since and status.since.isoformat(),
        "token": status.holder and status.holder.token,
        "standbys": list(status.standbys),
        "due": {name: due.isoformat() for name, due in status.dues()},
    }


def _lines(status: Status, timezone: Any) -> str:
    def shown(instant: datetime | None) -> str:
        return instant.astimezone(timezone).isoformat(" ", "seconds") if instant else ""

    leads = f"{status.leader}  since {shown(status.since)}" if status.leader else "no beat"
    names = max((len(name) for name in status.records), default=0)
    rows = [
        ("leads", [leads]),
        ("stands by", list(status.standbys) or ["no beat"]),
        ("next due", [f"{name:<{names}}  {shown(due)}" for name, due in status.dues()]),
    ]
    return "\n".join(
        f"{title if first == 0 else '':<11}{one_line(line)}"
        for title, lines in rows
        for first, line in enumerate(lines)
    )
