"""``dlock release``: take a key from the holder that was shown, and from nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from celery_dlock.beat import leader
from celery_dlock.cli import plain
from celery_dlock.cli.ask import agreed, document, yes
from celery_dlock.cli.command import Command, app_of, readable
from celery_dlock.cli.complete import keys
from celery_dlock.cli.ls import holding
from celery_dlock.cli.safe import shown
from celery_dlock.cli.screen import name, put, table
from celery_dlock.core.state import Mode
from celery_dlock.inspection import hands
from celery_dlock.inspection.overview import Held, Line, Near, as_stored, line


@click.command(cls=Command)
@click.argument("key", shell_complete=keys)
@click.option("--token", type=click.IntRange(1), help="Of several holders, the one with this.")
@click.option("--owner", help="Of several holders, this one; `ls --json` tells its name.")
@click.option("--all-holders", is_flag=True, help="Each of several holders.")
@yes
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.pass_context
def release(
    ctx: click.Context,
    *,
    key: str,
    token: int | None,
    owner: str | None,
    all_holders: bool,
    yes: bool,
    for_programs: bool,
) -> None:
    """Take KEY from its holder, which is shown first.

    Exits with 1 when nothing was freed, also because the key has changed hands meanwhile.
    """
    if (token is not None) + (owner is not None) + all_holders > 1:
        raise click.UsageError("say one of --token, --owner and --all-holders")
    if key.startswith(leader.KEYS):
        raise click.ClickException(f"{shown(key)} is led by: use `dlock beat --hand-over`")
    app = app_of(ctx)
    key = as_stored(app, key)
    found = Near.of(app, key)
    chosen = _chosen(readable(found.line), token, owner)
    if chosen:
        _ask(ctx, found, chosen, all_holders=all_holders, yes=yes, for_programs=for_programs)
    with document({"key": key}, "holders", for_programs=for_programs) as told:
        if not chosen:
            raise click.ClickException(_nobody(found.line, token, owner))
        for holder in chosen:
            freed = _freed(app, key, holder, say=not for_programs)
            told.append({**plain.holder(holder, found.now), "released": freed})
    ctx.exit(0 if all(each["released"] for each in told) else 1)


def _ask(
    ctx: click.Context,
    found: Near,
    chosen: Sequence[Held],
    *,
    all_holders: bool,
    yes: bool,
    for_programs: bool,
) -> None:
    """Say who has it and what becomes of them, and go on if the answer is yes."""
    if not for_programs:
        put(ctx, _holders(found))
    if len(chosen) > 1 and not all_holders:
        raise click.UsageError("there are several: say --token, --owner or --all-holders")
    if not yes and not for_programs:
        click.echo("\nWhat becomes of it:")
        for consequence in hands.CONSEQUENCES:
            click.echo(click.wrap_text(consequence, 100, "  ", "  "))
        click.echo()
    whom = f"task {shown(chosen[0].task_id)}" if len(chosen) == 1 else f"{len(chosen)} holders"
    question = f"Take {shown(found.line.key)} from {whom}?"
    agreed(question, yes=yes, for_programs=for_programs)


def _chosen(found: Line, token: int | None, owner: str | None) -> list[Held]:
    """Those that are meant."""
    return [
        held
        for held in found.holders
        if (token is None or (held.mode is not Mode.SHARED and held.token == token))
        and (owner is None or held.owner == owner)
    ]


def _nobody(found: Line, token: int | None, owner: str | None) -> str:
    """Why none of its holders is meant."""
    if not found.holders:
        return f"nobody holds {shown(found.key)}"
    which = f"with token {token}" if token is not None else f"by the name {shown(owner or '')}"
    now = ", ".join(_who(held) for held in found.holders)
    return f"no holder of {shown(found.key)} goes {which}; it is held by {now}"


def _freed(app: Any, key: str, holder: Held, *, say: bool) -> bool:
    """Free it, and tell whether that was still to be done; *say* so to people."""
    if hands.release(app, key, holder):
        if say:
            click.echo(f"{shown(key)} is taken from {_who(holder)}")
        return True
    now = line(app, key).holders
    instead = f"held by {', '.join(map(_who, now))}" if now else "held by nobody"
    click.echo(
        f"Nothing was freed: {_who(holder)} has {shown(key)} no more; it is {instead}", err=True
    )
    return False


def _who(holder: Held) -> str:
    reads = holder.mode is Mode.SHARED
    return f"{shown(holder.task_id)} ({'reads' if reads else f'token {holder.token}'})"


def _holders(found: Near) -> Table:
    columns = ("HOLDER", ">>HELD FOR", ">>LEASE LEFT", ">TOKEN", "OWNER")
    rows = [[*holding(held, found.now), name(held.owner)] for held in found.line.holders]
    return table(*columns, rows=rows)
