"""``dlock hold``: a person keeps a key closed for a while, and says why."""

from __future__ import annotations

import click

from celery_dlock.cli.actions import agreed, yes_option
from celery_dlock.cli.command import Command, app_of, for_programs, keys, readable
from celery_dlock.cli.output import as_json, closed_for, one_line, plain_hold, shown
from celery_dlock.core.checks import seconds_of
from celery_dlock.core.sentences import count
from celery_dlock.ops import holds
from celery_dlock.ops.event_text import lasting
from celery_dlock.ops.overview import KeyDetails, OnHold, as_stored


def _seconds(_: click.Context, __: click.Parameter, value: str) -> float:
    """A time as people write it: ``90s``, ``30m``, ``1h30m``, ``2d``."""
    seconds = seconds_of(value)
    if seconds is None or seconds > holds.LONGEST_HOLD:
        raise click.BadParameter(
            f"a time is such as 90s, 30m, 1h30m or 2d, and 7d at most, got {one_line(value)}"
        )
    return seconds


@click.command(cls=Command, short_help="Keep a key closed for a while, and say why.")
@click.argument("key", shell_complete=keys)
@click.option(
    "--for", "lasts", required=True, callback=_seconds, metavar="TIME", help="Such as 30m or 1h30m."
)
@click.option("--because", required=True, help="Why: a line for all who ask.")
@click.option("--by", default=holds.this_person, show_default="user@host", help="Who wants it.")
@yes_option
@for_programs
@click.pass_context
def hold(
    ctx: click.Context,
    *,
    key: str,
    lasts: float,
    because: str,
    by: str,
    yes: bool,
    for_programs: bool,
) -> None:
    """Keep KEY closed for a while: nobody new gets it, and who has it goes on.

    Who waits is told why, and this time does not count for its max_wait. It ends by itself, or with
    `dlock release KEY`. A hold that is there already is shown, and replaced. Exits with 1 when
    nothing was done, also because another person was faster.
    """
    app = app_of(ctx)
    details = KeyDetails.of(app, as_stored(app, key))
    before, key = readable(details.line).on_hold(details.now), details.line.key
    agreed(_question(details, before, lasts), yes=yes, for_programs=for_programs)
    done = holds.put_on_hold(app, key, lasts, because, by, before.name if before else "")
    after = KeyDetails.of(app, key)
    current = after.line.on_hold(after.now)
    if for_programs:
        click.echo(as_json({"key": key, "on_hold": done, "hold": plain_hold(current)}))
    elif done:
        click.echo(
            f"{shown(key)} is on hold for {lasting(lasts)}, by {one_line(f'{by}: {because}')}"
        )
    if not done:
        who = f"on hold by {one_line(current.who)}" if current else "on hold no more"
        click.echo(f"Nothing was done: {shown(key)} is {who} by now", err=True)
    ctx.exit(0 if done else 1)


def _question(details: KeyDetails, before: OnHold | None, lasts: float) -> str:
    key, line = shown(details.line.key), details.line
    if before is not None:
        current = f"{key} is {closed_for(before, details.now)}"
        return f"{current}. Keep it closed for {lasting(lasts)} from now on instead?"
    goes_on = f"{count(len(line.holders), 'holder goes', 'holders go')} on" if line.holders else ""
    waits = f"{count(line.waiting, 'task waits', 'tasks wait')}" if line.waiting else ""
    so_far = "; ".join(filter(None, (goes_on, waits)))
    return f"Keep {key} closed for {lasting(lasts)}{f' ({so_far})' if so_far else ''}?"
