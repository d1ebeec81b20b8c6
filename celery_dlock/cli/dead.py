"""``dlock dead`` and ``dlock replay``: messages that nobody could run, and another chance."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from celery_dlock.cli.ask import agreed, document, yes
from celery_dlock.cli.command import Command, app_of
from celery_dlock.cli.complete import dead_tasks
from celery_dlock.cli.plain import when
from celery_dlock.cli.safe import as_json, shown
from celery_dlock.cli.screen import lasting, name, put, table
from celery_dlock.inspection import hands
from celery_dlock.inspection.graves import Grave, Graves


@click.command(cls=Command)
@click.option(
    "--limit",
    default=100,
    show_default=True,
    type=click.IntRange(1, hands.ALL_DEAD - 1),
    metavar="N",
)
@click.option("--args", "arguments", is_flag=True, help="With the arguments, which may be secret.")
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.pass_context
def dead(ctx: click.Context, *, limit: int, arguments: bool, for_programs: bool) -> None:
    """List the messages that nobody could run.

    Those first that are dead longest.
    """
    graves = Graves.of(app_of(ctx), limit)
    if for_programs:
        found = [_plain(grave, arguments=arguments) for grave in graves.found]
        click.echo(as_json({"more": graves.more, "dead": found}))
    elif graves.found:
        put(ctx, _table(graves, arguments=arguments))
        if graves.more:
            click.echo(f"{limit} are shown, and there are more: --limit", err=True)
    else:
        click.echo("no message is dead")


@click.command(cls=Command)
@click.argument("task_id", required=False, shell_complete=dead_tasks)
@click.option("--all", "all_", is_flag=True, help="Each dead message there is.")
@yes
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.pass_context
def replay(
    ctx: click.Context, *, task_id: str | None, all_: bool, yes: bool, for_programs: bool
) -> None:
    """Have the dead message of TASK_ID wait for its key again.

    It runs, whatever the store knew of its lost runs. Exits with 1 when nothing is dead, or was
    not dead any more.
    """
    if (task_id is None) is not all_:
        raise click.UsageError("say either a task id or --all")
    app = app_of(ctx)
    if task_id is None:
        burials = hands.dead(app, hands.ALL_DEAD)
        found = [hands.Message(burial.key, burial.dead.task) for burial in burials]
        nothing, question = "no message is dead", f"Replay all {len(found)} dead messages?"
    else:
        found = hands.dead_under(app, task_id)
        nothing = f"no message of {shown(task_id)} is dead"
        question = f"Replay {shown(task_id)} for {', '.join(shown(each.key) for each in found)}?"
    if found:
        agreed(question, yes=yes, for_programs=for_programs)
    with document({}, "messages", for_programs=for_programs) as told:
        if not found:
            raise click.ClickException(nothing)
        for message in found:
            replayed = _replayed(app, message, say=not for_programs)
            told.append(
                {
                    "key": message.key,
                    "task_id": message.task_id,
                    "task": message.task,
                    "replayed": replayed,
                }
            )
    ctx.exit(0 if all(each["replayed"] for each in told) else 1)


def _replayed(app: Any, message: hands.Message, *, say: bool) -> bool:
    if hands.replay(app, message):
        if say:
            click.echo(f"{shown(message.task_id)} waits for {shown(message.key)} again")
        return True
    click.echo(f"{shown(message.task_id)} is not dead any more", err=True)
    return False


def _table(graves: Graves, *, arguments: bool) -> Table:
    columns = ["KEY", "TASK ID", "TASK", "CAUSE", ">>DEAD FOR", ">BYTES"]
    rows = [
        [
            name(grave.key),
            name(grave.task_id),
            "?" if grave.name is None else name(grave.name),
            grave.cause.value,
            lasting((graves.now - grave.since).total_seconds()),
            str(grave.size),
            *(["?" if grave.arguments is None else name(grave.arguments)] if arguments else []),
        ]
        for grave in graves.found
    ]
    return table(*columns, *(["ARGUMENTS"] if arguments else []), rows=rows)


def _plain(grave: Grave, *, arguments: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"arguments": grave.arguments} if arguments else {}
    return {
        "key": grave.key,
        "task_id": grave.task_id,
        "task": grave.task,
        "name": grave.name,
        "cause": grave.cause.value,
        "since": when(grave.since),
        "size": grave.size,
        **told,
    }
