"""``dlock show``: how a key stands, or why a task did not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from celery_dlock.cli import plain
from celery_dlock.cli.command import Command, app_of
from celery_dlock.cli.complete import keys
from celery_dlock.cli.safe import as_json, one_line, shown
from celery_dlock.cli.screen import name, put, table
from celery_dlock.cli.waiting import queue_table
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.inspection import hands
from celery_dlock.inspection.explain import Answer, KeyAnswer, explain, explain_key
from celery_dlock.inspection.told import told
from celery_dlock.inspection.verdict import State
from celery_dlock.inspection.wording import Clock
from celery_dlock.monitoring.history_reader import Entry, HistoryReader


@click.command(cls=Command)
@click.argument("what", metavar="KEY|TASK_ID", shell_complete=keys)
@click.option("--key", "as_key", is_flag=True, help="It is a key.")
@click.option("--task", "as_task", is_flag=True, help="It is the id of a task.")
@click.option("--json", "for_programs", is_flag=True, help="For programs.")
@click.pass_context
def show(ctx: click.Context, *, what: str, as_key: bool, as_task: bool, for_programs: bool) -> None:
    """Show how a key stands, or why a task did not run.

    With dlock_history also what has happened to it.

    Exits with 1 when nothing is known of it.
    """
    if as_key and as_task:
        raise click.UsageError("say one of --key and --task")
    app = app_of(ctx)
    of_key = None if as_task else _of_key(app, what, sure=as_key)
    if of_key is not None and (as_key or _is_known(of_key)):
        if not as_key and _is_task(app, what, away=of_key.away):
            click.echo(f"{shown(what)} is the id of a task, too: --task shows that", err=True)
        click.echo(as_json(_plain_key(of_key))) if for_programs else _put_key(ctx, app, of_key)
        ctx.exit(0 if _is_known(of_key) else 1)
    answer = explain(app, what, away=of_key.away if of_key else "")
    click.echo(as_json(_plain_task(answer))) if for_programs else _put_task(ctx, app, answer)
    unknown = answer.state is State.UNKNOWN and not answer.entries
    if unknown and of_key is not None and of_key.line is not None:
        click.echo(f"if {shown(what)} is a key, nobody holds it and nobody waits for it", err=True)
    ctx.exit(1 if unknown else 0)


def _of_key(app: Any, what: str, *, sure: bool) -> KeyAnswer | None:
    """``None`` for what cannot be a key."""
    try:
        return explain_key(app, what)
    except ConfigurationError:
        if sure:
            raise
        return None


def _is_known(answer: KeyAnswer) -> bool:
    in_use = answer.line is not None and not answer.line.is_idle
    return in_use or bool(answer.queue or answer.entries)


def _is_task(app: Any, what: str, *, away: str) -> bool:
    """Whether a message of it waits, or something has happened to it. An *away* store is spared."""
    try:
        waits = not away and bool(hands.find(app, [what]))
        return waits or bool(_events(app, what))
    except BackendUnavailable:
        return False


def _events(app: Any, task_id: str) -> Sequence[Entry]:
    try:
        reader = HistoryReader.from_app(app)
    except ConfigurationError:
        return ()
    try:
        return reader.of_task(task_id, 1)
    finally:
        reader.close()


def _put_key(ctx: click.Context, app: Any, answer: KeyAnswer) -> None:
    put(ctx, Text("key ") + name(answer.key, "bold"), *_sentences(answer.sentences))
    if answer.queue:
        put(ctx, "", queue_table(answer.queue, answer.now))
    if answer.entries:
        put(ctx, "", _timeline(answer.entries, Clock.of(app)))


def _put_task(ctx: click.Context, app: Any, answer: Answer) -> None:
    about = f" ({shown(answer.task_name)})" if answer.task_name else ""
    head = Text("task ") + name(answer.task_id, "bold") + Text(f"{about}: {answer.state}")
    put(ctx, head, *_sentences((*answer.sentences, *answer.gaps)))
    if answer.entries:
        put(ctx, "", _timeline(answer.entries, Clock.of(app)))


def _sentences(sentences: Iterable[str]) -> list[Text]:
    return [Text(f"- {one_line(sentence)}") for sentence in sentences]


def _timeline(entries: Sequence[Entry], clock: Clock) -> Table:
    """What happened, to whom."""
    rows = [
        [name(entry.task_id), name(entry.task_name), Text(one_line(told(entry, clock)))]
        for entry in entries
    ]
    return table("TASK ID", "TASK", "WHAT HAPPENED", rows=rows)


def _plain_key(answer: KeyAnswer) -> dict[str, Any]:
    return {
        "kind": "key",
        "key": answer.key,
        "line": answer.line and plain.line(answer.line, answer.now),
        "queue": [plain.in_line(each) for each in answer.queue],
        "sentences": list(answer.sentences),
        "events": [_plain_event(entry) for entry in answer.entries],
    }


def _plain_task(answer: Answer) -> dict[str, Any]:
    return {
        "kind": "task",
        "task_id": answer.task_id,
        "task_name": answer.task_name,
        "state": answer.state.value,
        "sentences": list(answer.sentences),
        "gaps": list(answer.gaps),
        "keys": list(answer.keys),
        "tasks": list(answer.tasks),
        "events": [_plain_event(entry) for entry in answer.entries],
    }


def _plain_event(entry: Entry) -> dict[str, Any]:
    return {
        "at": plain.when(entry.at),
        "event": entry.event,
        "key": entry.key,
        "task_id": entry.task_id,
        "task_name": entry.task_name,
        "label": entry.label,
        "token": entry.token,
        "details": entry.details,
    }
