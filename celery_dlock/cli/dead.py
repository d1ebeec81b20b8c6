"""``dlock dead``: the dead letters, and sending them again or giving them up."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.table import Table

from celery_dlock.cli.actions import carry_out, yes_option
from celery_dlock.cli.command import Command, app_of, dead_tasks, for_programs, limit
from celery_dlock.cli.output import as_json, name, put, table
from celery_dlock.ops.dead_letters import ALL_DEAD, DeadLetterList, discards, letters, replays
from celery_dlock.ops.event_text import lasting
from celery_dlock.ops.plain_text import shown


@click.command(cls=Command, short_help="List dead letters; replay or discard them.")
@click.argument("task_id", required=False, shell_complete=dead_tasks)
@click.option("--replay", is_flag=True, help="Send it again: it waits for its key and runs.")
@click.option("--discard", is_flag=True, help="Delete it: its task does not run.")
@click.option("--all", "all_", is_flag=True, help="Replay or discard all dead letters.")
@limit(100, most=ALL_DEAD - 1)
@click.option("--args", "arguments", is_flag=True, help="Show the arguments, which may be secret.")
@yes_option
@for_programs
@click.pass_context
def dead(
    ctx: click.Context,
    *,
    task_id: str | None,
    replay: bool,
    discard: bool,
    all_: bool,
    limit: int,
    arguments: bool,
    yes: bool,
    for_programs: bool,
) -> None:
    """List the dead letters, messages that could not be run, or replay or discard them.

    The oldest come first. A dead letter that is replayed waits for its key again, and its lost runs
    are forgotten; one that has expired stays. The message of one that is discarded cannot be
    restored, and the result of its task stays as it is. Exits with 1 if there was nothing to replay
    or to discard.
    """
    acts = replay or discard
    if replay and discard:
        raise click.UsageError("give only one of --replay and --discard")
    if acts and (task_id is None) is not all_:
        raise click.UsageError("give either a task id or --all")
    if not acts and (all_ or task_id is not None):
        raise click.UsageError("what is to be done with it: --replay or --discard?")
    app = app_of(ctx)
    if acts:
        which = replays if replay else discards
        none = "there are no dead letters"
        if task_id is not None:
            none = f"{shown(task_id)} has no dead letter: see `dlock dead`"
        chosen = which(app, letters(app, task_id))
        carry_out(ctx, chosen, none, yes=yes, for_programs=for_programs)
    _list(ctx, DeadLetterList.of(app, limit), arguments=arguments, for_programs=for_programs)


def _list(
    ctx: click.Context, letters: DeadLetterList, *, arguments: bool, for_programs: bool
) -> None:
    if for_programs:
        plain_letters = [asdict(letter) for letter in letters.letters]
        if not arguments:
            for letter in plain_letters:
                del letter["arguments"]
        click.echo(as_json({"more": letters.more, "dead": plain_letters}))
    elif letters.letters:
        put(ctx, _table(letters, arguments=arguments))
        if letters.more:
            shown = f"{len(letters.letters)} are shown, and there are more: --limit"
            click.echo(shown, err=True)
    else:
        click.echo("there are no dead letters")


def _table(letters: DeadLetterList, *, arguments: bool) -> Table:
    columns = ["KEY", "TASK ID", "TASK", "CAUSE", ">>DEAD FOR", ">BYTES"]
    rows = [
        [
            name(letter.key),
            name(letter.task_id),
            "?" if letter.name is None else name(letter.name),
            letter.cause.value,
            lasting((letters.now - letter.since).total_seconds()),
            str(letter.size),
            *(["?" if letter.arguments is None else name(letter.arguments)] if arguments else []),
        ]
        for letter in letters.letters
    ]
    return table(*columns, *(["ARGUMENTS"] if arguments else []), rows=rows)
