"""``dlock release``, ``hold`` and ``cancel``, and how every command carries out an action.

Before anything is done there is a question. Without a terminal there is nobody to answer; a program
is not asked, and gets a document of what was done.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from celery_dlock.cli.command import (
    Command,
    Option,
    app_of,
    for_programs,
    keys,
    readable,
    waiting_tasks,
)
from celery_dlock.cli.output import as_json, name, put, table
from celery_dlock.cli.show import HOLDING, holding, on_hold
from celery_dlock.core.checks import seconds_of
from celery_dlock.core.state import Mode
from celery_dlock.ops import actions, holds
from celery_dlock.ops.action import Action, check_no_beat, this_person
from celery_dlock.ops.event_text import lasting
from celery_dlock.ops.overview import Held, KeyDetails, Line, as_stored
from celery_dlock.ops.plain_text import one_line, shown

#: Said beside what cannot be cancelled.
REVOKE = "it may run, or be at the broker: `celery control revoke {}`"
NO_BROADCAST = (
    "it may run, or be at the broker, which broadcasts nothing: `celery control revoke` reaches no "
    "worker"
)

#: So many actions are named in one question.
ASKED = 3

#: For scripts.
yes_option: Option = click.option("--yes", is_flag=True, help="Do not ask.")


def carry_out(
    ctx: click.Context, chosen: Sequence[Action], none: str, *, yes: bool, for_programs: bool
) -> None:
    """Ask, do all that is *chosen*, and say what was done; *none* says why nothing is.

    Exits with 1 unless everything was still to be done. Programs get a document at the end, also
    where an error cuts it off: what it names was done.
    """
    if chosen and not yes:
        _ask(chosen, for_programs=for_programs)
    reports: list[dict[str, Any]] = []
    try:
        if not chosen:
            raise click.ClickException(none)
        for action in chosen:
            done = action.carry_out(this_person())
            reports.append({"action": action.name, **action.names, **action.facts, "done": done})
            if not done:
                click.echo(action.nothing, err=True)
            elif not for_programs:
                click.echo(action.done)
    finally:
        if for_programs:
            click.echo(as_json({"actions": reports}))
    ctx.exit(0 if all(each["done"] for each in reports) else 1)


def _ask(chosen: Sequence[Action], *, for_programs: bool) -> None:
    """Go on if the answer is yes; without anybody to answer it is an error."""
    orders = [action.order for action in chosen[:ASKED]]
    more = [f"and {len(chosen) - ASKED} more"] if len(chosen) > ASKED else []
    question = "; ".join([*orders, *more])
    question = f"{question[0].upper()}{question[1:]}?"
    if for_programs or not sys.stdin.isatty():
        raise click.ClickException(f"{question} There is no terminal to ask at: use --yes")
    click.echo("\nWhat happens then:")
    for consequence in dict.fromkeys(text for action in chosen for text in action.consequences):
        click.echo(click.wrap_text(consequence, 100, "  ", "  "))
    click.echo()
    if not click.confirm(question):
        click.echo("Nothing was done.")
        raise click.exceptions.Exit(1)


@click.command(cls=Command, short_help="Take a key from its holder.")
@click.argument("key", shell_complete=keys)
@click.option("--token", type=click.IntRange(1), help="Only the holder with this token.")
@click.option("--owner", help="Only this holder; `ls --json` shows its owner.")
@click.option("--all-holders", is_flag=True, help="All holders.")
@click.option("--cooldown", is_flag=True, help="Not a holder: open the slots that cool down.")
@yes_option
@for_programs
@click.pass_context
def release(
    ctx: click.Context,
    *,
    key: str,
    token: int | None,
    owner: str | None,
    all_holders: bool,
    cooldown: bool,
    yes: bool,
    for_programs: bool,
) -> None:
    """Take KEY from its holder, which is shown first; or open it while it is cooling down.

    A running body is not stopped. Exits with 1 if nothing was released, also if the key has
    changed hands meanwhile. A hold ends with `dlock hold KEY --end`.
    """
    if (token is not None) + (owner is not None) + all_holders + cooldown > 1:
        raise click.UsageError("give only one of --token, --owner, --all-holders and --cooldown")
    check_no_beat(key)
    app = app_of(ctx)
    details = KeyDetails.of(app, as_stored(app, key))
    key, line = details.line.key, readable(details.line)
    if cooldown:
        is_closed = line.opens(details.now) is not None
        chosen = [actions.end_cooldown(app, key)] if is_closed else []
        none = f"{shown(key)} is not cooling down"
    else:
        holders = _chosen(line, token, owner)
        if holders and not for_programs:
            put(ctx, _holders(details))
        if len(holders) > 1 and not all_holders:
            which = "--token, --owner or --all-holders"
            raise click.UsageError(f"there are several holders: give {which}")
        chosen = [actions.release(app, key, holder.owner) for holder in holders]
        none = "" if holders else _nobody(details, token, owner)
    carry_out(ctx, chosen, none, yes=yes, for_programs=for_programs)


def _chosen(line: Line, token: int | None, owner: str | None) -> list[Held]:
    """Those that are meant."""
    return [
        held
        for held in line.holders
        if (token is None or (held.mode is not Mode.SHARED and held.token == token))
        and (owner is None or held.owner == owner)
    ]


def _nobody(details: KeyDetails, token: int | None, owner: str | None) -> str:
    """Why none of its holders is meant, and what else keeps it closed."""
    line, key = details.line, shown(details.line.key)
    if line.holders:
        which = f"has token {token}" if token is not None else f"is {shown(owner or '')}"
        now = ", ".join(map(actions.who_holds, line.holders))
        return f"no holder of {key} {which}; it is held by {now}"
    if hold := line.on_hold(details.now):
        closed = on_hold(hold, details.now)
        return f"nobody holds {key}; it is {closed}; `dlock hold {key} --end` ends that"
    if opens := line.opens(details.now):
        left = lasting((opens - details.now).total_seconds())
        return f"nobody holds {key}; it cools down for another {left}: --cooldown opens it"
    return f"nobody holds {key}"


def _holders(details: KeyDetails) -> Table:
    columns = (*HOLDING, ">TOKEN", "OWNER")
    rows = [
        [
            *holding(held, len(details.line.holders), details.now),
            "" if held.mode is Mode.SHARED else str(held.token),
            name(held.owner),
        ]
        for held in details.line.holders
    ]
    return table(*columns, rows=rows)


def _seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """A time as people write it: ``90s``, ``30m``, ``1h30m``, ``2d``."""
    seconds = None if value is None else seconds_of(value)
    if value is not None and (seconds is None or seconds > holds.LONGEST_HOLD):
        raise click.BadParameter(
            f"a time is such as 90s, 30m, 1h30m or 2d, and 7d at most, got {one_line(value)}"
        )
    return seconds


@click.command(cls=Command, short_help="Keep a key closed for a while and say why, or end that.")
@click.argument("key", shell_complete=keys)
@click.option("--for", "lasts", callback=_seconds, metavar="TIME", help="Such as 30m or 1h30m.")
@click.option("--because", help="Why: a line for all who ask.")
@click.option("--by", default=this_person, show_default="user@host", help="Who wants it.")
@click.option("--end", is_flag=True, help="End the hold of KEY.")
@yes_option
@for_programs
@click.pass_context
def hold(
    ctx: click.Context,
    *,
    key: str,
    lasts: float | None,
    because: str | None,
    by: str,
    end: bool,
    yes: bool,
    for_programs: bool,
) -> None:
    """Keep KEY closed for a while: nobody new gets it, and who has it goes on.

    Who waits is told why, and this time does not count for its max_wait. It ends by itself, or with
    --end. A hold that is there already is shown, and replaced. Exits with 1 when nothing was done,
    also because another person was faster.
    """
    if [lasts is None, because is None] != [end, end]:
        raise click.UsageError("give either --for and --because, or --end")
    app = app_of(ctx)
    details = KeyDetails.of(app, as_stored(app, key))
    current, key = readable(details.line).on_hold(details.now), details.line.key
    was = current.name if current else ""
    if lasts is not None and because is not None:
        chosen = [holds.hold(app, key, was, lasts=lasts, because=because, by=by)]
    else:
        chosen = [holds.end_hold(app, key, was)] if current else []
    carry_out(ctx, chosen, f"{shown(key)} is not on hold", yes=yes, for_programs=for_programs)


@click.command(cls=Command, short_help="End a parked task, and the unique claim of a unique one.")
@click.argument("task_id", shell_complete=waiting_tasks)
@yes_option
@for_programs
@click.pass_context
def cancel(ctx: click.Context, *, task_id: str, yes: bool, for_programs: bool) -> None:
    """Cancel TASK_ID, which is parked in the lock store: it ends as revoked.

    A key that is reserved for it, as for a retry, is released at once, and the task ends when its
    message comes. A running body is not stopped, and a message in the broker is not reached: for
    those use `celery control revoke`, which needs a broker that broadcasts. If the task is unique
    its unique claim ends in any case, and the next call is published. Exits with 1 if no message of
    it waits and no unique claim was ended.
    """
    app, task, none = app_of(ctx), shown(task_id), ""
    chosen = actions.cancels(app, task_id)
    if not chosen:
        hint = REVOKE.format(task) if _broadcasts(app) else NO_BROADCAST
        where = "waits in the lock store, and no key is reserved for it"
        none = f"no message of {task} {where}; {hint}"
    carry_out(ctx, chosen, none, yes=yes, for_programs=for_programs)


def _broadcasts(app: Any) -> bool:
    """Whether the broker broadcasts: else ``revoke()`` and all remote control reach no worker."""
    with app.connection_for_write() as connection:
        by_option = connection.transport_options.get("supports_fanout")  # of Amazon SQS
        return bool(by_option) or "fanout" in connection.transport.implements.exchange_type
