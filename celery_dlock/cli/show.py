"""``dlock ls`` and ``show``: what is locked and who waits, how a key stands, and why a task did not
run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from celery_dlock.cli.command import Command, app_of, for_programs, keys, limit
from celery_dlock.cli.output import (
    as_json,
    left,
    name,
    plain_line,
    put,
    screen,
    table,
)
from celery_dlock.core.state import Mode
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.monitoring.history_reader import HistoryEntry, HistoryReader
from celery_dlock.ops.event_text import Clock, describe, lasting
from celery_dlock.ops.explain import Answer, State, explain
from celery_dlock.ops.explain_key import KeyAnswer, explain_key
from celery_dlock.ops.overview import (
    Held,
    Line,
    MessageFacts,
    OnHold,
    QueueEntry,
    messages_of_heads,
)
from celery_dlock.ops.plain_text import one_line, shown
from celery_dlock.ops.unique import ALL_CLAIMS, Living, living
from celery_dlock.ops.urgent import Selection, most_urgent
from celery_dlock.runtime import runtime

#: Who holds a key.
HOLDING = ("TASK", "HOLDER", "WORKER", ">>HELD FOR", ">>LEASE LEFT")
COLUMNS = ("KEY", *HOLDING, ">WAITING", ">>OLDEST WAIT")

#: Lines of the screen that are no keys.
AROUND = 5

EVERY = "Seconds between two looks of --watch, by default one."


@click.command(
    cls=Command, short_help="List the keys that are held or waited for, and the unique tasks."
)
@click.option("--match", default="", metavar="TEXT", help="Only keys with TEXT in their name.")
@click.option("--waiting", is_flag=True, help="Only keys with waiting tasks.")
@limit(100)
@click.option("--all", "all_", is_flag=True, help="Show all of them.")
@click.option("--watch", is_flag=True, help="Show the keys again and again until Ctrl-C.")
@click.option("--every", default=1.0, type=click.FloatRange(0.1), metavar="S", help=EVERY)
@for_programs
@click.pass_context
def ls(
    ctx: click.Context,
    *,
    match: str,
    waiting: bool,
    limit: int,
    all_: bool,
    watch: bool,
    every: float,
    for_programs: bool,
) -> None:
    """List the keys that are held or waited for, and the unique tasks that live.

    Keys whose tasks have waited longest come first, then those held longest. A key that cannot be
    read, or that a person has put on hold, comes before them. The lock of beat is not among them:
    `dlock beat` shows it.

    With --watch as many keys are shown as there is room for, every S seconds or less often if that
    takes longer. Without a terminal they are printed once. Each look reads all keys in use.
    """
    app, console = app_of(ctx), screen(ctx)
    if watch and console.is_terminal and not for_programs:
        _watch(console, partial(most_urgent, app, match=match, waiting=waiting), every)
        return
    selection = most_urgent(app, None if all_ else limit, match=match, waiting=waiting)
    most = ALL_CLAIMS if all_ else limit
    unique = [] if waiting else living(runtime(app).existing_store(), most, match=match)
    heads = messages_of_heads(app, selection.lines)
    if for_programs:
        plain_keys = [
            {**plain_line(line, selection.now), **_plain_message(heads.get(line.key))}
            for line in selection.lines
        ]
        plain_unique = list(map(asdict, unique))
        counted = {"total": selection.counts.keys, "unreadable": selection.counts.unreadable}
        click.echo(as_json({**counted, "keys": plain_keys, "unique": plain_unique}))
        return
    if not selection.lines:
        which = f"no key with {shown(match)} in its name" if match else "no key"
        click.echo(f"{which} is waited for" if waiting else f"{which} is held or waited for")
    else:
        put(ctx, _lines_table(selection))
    for key, message in heads.items():
        if message.of_chain:
            click.echo(f"{shown(key)}: {shown(message.sentence)}", err=True)
        if broker := message.broker:
            sentence = f"the next task belongs to the broker {shown(broker)}"
            click.echo(f"{shown(key)}: {sentence}", err=True)
    if selection.counts.unreadable:
        click.echo(_unreadable(selection), err=True)
    if selection.counts.keys > len(selection.lines):
        those = f"{len(selection.lines)} of {selection.counts.keys} keys"
        click.echo(f"{those}: --limit and --all show more, --match fewer", err=True)
    if unique:
        put(ctx, "", _unique_table(unique))


def _unreadable(selection: Selection) -> str:
    counts = selection.counts
    return f"{counts.unreadable} of {counts.keys} keys cannot be read: `dlock show KEY` says why"


def _unique_table(claims: Iterable[Living]) -> Table:
    """Who lives under which unique claim; in the broker, or at a lock key."""
    columns = ("UNIQUE CLAIM", "TASK ID", "AT")
    rows = [
        [
            name(claim.claim),
            name(claim.task_id),
            "its period" if claim.over else name(claim.key) if claim.key else "the broker",
        ]
        for claim in claims
    ]
    return table(*columns, rows=rows)


def _lines_table(selection: Selection) -> Table:
    """A row for each holder of the keys; the key stands in the first of them."""
    return table(
        *COLUMNS, rows=[row for line in selection.lines for row in _rows(line, selection.now)]
    )


def _rows(line: Line, now: datetime) -> Iterator[list[str | Text]]:
    oldest = lasting((now - line.oldest).total_seconds()) if line.oldest else ""
    queue = [f"{line.waiting}{'+' if line.more_wait else ''}" if line.waiting else "", oldest]
    hold = line.on_hold(now)
    if line.unreadable:
        yield [name(line.key), Text("cannot be read", style="red"), *[""] * 6]
    elif hold is not None:
        yield [name(line.key), "", on_hold(hold, now), "", "", "", *queue]
    elif not line.holders:
        yield [name(line.key), "", _nobody(line, now), "", "", "", *queue]
    for number, held in enumerate(line.holders):
        first = number == 0 and hold is None
        yield [
            name(line.key) if first else "",
            *holding(held, len(line.holders), now),
            *(queue if first else ("", "")),
        ]


def on_hold(hold: OnHold, now: datetime) -> Text:
    """Who keeps it closed, for how long, and why."""
    left = lasting((hold.until - now).total_seconds())
    return Text(f"on hold, for {left} more, by {one_line(hold.who)}", style="yellow")


def _nobody(line: Line, now: datetime) -> Text:
    """Whose turn it is where nobody holds the key."""
    opens = line.opens(now)
    if line.woken:
        return Text("woken: ") + name(line.woken[0])
    if line.reserved:
        return Text("reserved: ") + name(line.reserved[0])
    if opens is None:
        return Text("nobody")
    why = "a call is debounced" if line.debounces else "it is cooling down"
    return Text(f"nobody, for another {lasting((opens - now).total_seconds())}: {why}")


def holding(held: Held, count: int, now: datetime) -> list[str | Text]:
    """Who it is, one of how many, and where; for how long, and how long its lease still goes."""
    who = name(held.task_id)
    if held.mode is Mode.SHARED:
        who.append(" reads", style="dim")
    elif held.mode is Mode.LIMITED:
        who.append(f" {count} of {held.limit}", style="dim")
    return [
        name(held.name) if held.name else "",
        who,
        name(held.where) if held.where else "",
        lasting((now - held.since).total_seconds()),
        left((held.expires - now).total_seconds()),
    ]


def _watch(console: Console, look: Any, every: float) -> None:
    """Show what *look* finds until somebody says that it is enough."""
    last: RenderableType = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                began = time.monotonic()
                try:
                    last = _shown(look(max(1, console.height - AROUND)))
                    head = Text(f"{_now()}  every {every:g} s, Ctrl-C quits", style="dim")
                except BackendUnavailable as exc:
                    # What was seen last stays, so that it can still be read.
                    head = Text(f"{_now()}  {one_line(str(exc))}", style="bold red")
                live.update(Group(head, "", last), refresh=True)
                # A store with very many keys is not kept busy by this alone.
                time.sleep(max(every, time.monotonic() - began))
    except KeyboardInterrupt:
        pass


def _shown(selection: Selection) -> RenderableType:
    below = [Text(f"{len(selection.lines)} of {selection.counts.keys} keys", style="dim")]
    if selection.counts.unreadable:
        below.append(Text(_unreadable(selection), style="red"))
    return Group(_lines_table(selection), *below)


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _plain_entry(entry: QueueEntry, messages: Mapping[str, MessageFacts]) -> dict[str, Any]:
    message = messages.get(entry.task)
    name = message.name if message else ""
    return {**asdict(entry), "name": name or None, **_plain_message(message)}


def _plain_message(facts: MessageFacts | None) -> dict[str, Any]:
    message = facts or MessageFacts()
    return {"broker": message.broker or None, "of_chain": message.of_chain or None}


def _name(entry: QueueEntry, facts: Mapping[str, MessageFacts]) -> str | Text:
    message = facts.get(entry.task)
    return name(message.name) if message and message.name else ""


def queue_table(
    queue: Iterable[QueueEntry], now: datetime, facts: Mapping[str, MessageFacts]
) -> Table:
    """Who waits, for people; *now* is the store's. A task that comes back by itself has no name."""
    columns = (">", "TASK", "TASK ID", ">>WAITS FOR", "HOW", "STATE")
    rows = [
        [str(number), _name(entry, facts), *_row(entry, now)]
        for number, entry in enumerate(queue, 1)
    ]
    return table(*columns, rows=rows)


def _row(entry: QueueEntry, now: datetime) -> list[str | Text]:
    waits = lasting((now - entry.arrived).total_seconds()) if entry.arrived else ""
    # A place is kept as long as its task keeps asking; a message waits by itself.
    how = "parked" if entry.parked else "rescheduled"
    how = "its message is elsewhere" if entry.reserved else how
    return [name(entry.task_id), waits, how, _state(entry, now)]


def _state(entry: QueueEntry, now: datetime) -> str:
    if entry.reserved and entry.until is not None:
        return f"reserved for another {lasting(max(0.0, (entry.until - now).total_seconds()))}"
    if entry.woken:
        why = f"woken to end: {entry.ending}" if entry.ending else "woken: its turn has come"
        return why if entry.wakes < 2 else f"{why}, {entry.wakes} times"
    if entry.until is None:
        return ""
    left = (entry.until - now).total_seconds()
    if entry.parked:
        return f"gives up in {lasting(left)}" if left > 0 else "is about to give up"
    return "" if left > 0 else f"has not asked for {lasting(-left)}"


@click.command(cls=Command, short_help="Show the state of a key, or why a task did not run.")
@click.argument("what", metavar="KEY|TASK_ID", shell_complete=keys)
@click.option("--key", "as_key", is_flag=True, help="KEY|TASK_ID is a key.")
@click.option("--task", "as_task", is_flag=True, help="KEY|TASK_ID is a task id.")
@limit(30)
@for_programs
@click.pass_context
def show(
    ctx: click.Context,
    *,
    what: str,
    as_key: bool,
    as_task: bool,
    limit: int,
    for_programs: bool,
) -> None:
    """Show the state of a key, or why a task did not run.

    The first N tasks that wait for a key are listed in the order of their turns. With dlock_history
    its events are shown too.

    Exits with 1 if nothing is known of it.
    """
    if as_key and as_task:
        raise click.UsageError("give only one of --key and --task")
    app = app_of(ctx)
    of_key = None if as_task else _of_key(app, what, limit, sure=as_key)
    if of_key is not None and (as_key or _is_known(of_key)):
        if not as_key and _is_task(app, what, unavailable=of_key.unavailable):
            click.echo(f"{shown(what)} is also a task id: --task shows that", err=True)
        click.echo(as_json(_plain_key(of_key))) if for_programs else _put_key(ctx, app, of_key)
        ctx.exit(0 if _is_known(of_key) else 1)
    answer = explain(app, what, unavailable=of_key.unavailable if of_key else "")
    click.echo(as_json(_plain_task(answer))) if for_programs else _put_task(ctx, app, answer)
    unknown = answer.state is State.UNKNOWN and not answer.entries
    if unknown and of_key is not None and of_key.line is not None:
        click.echo(f"if {shown(what)} is a key, nobody holds it and nobody waits for it", err=True)
    ctx.exit(1 if unknown else 0)


def _of_key(app: Any, what: str, limit: int, *, sure: bool) -> KeyAnswer | None:
    """``None`` for what cannot be a key."""
    try:
        return explain_key(app, what, limit)
    except ConfigurationError:
        if sure:
            raise
        return None


def _is_known(answer: KeyAnswer) -> bool:
    in_use = answer.line is not None and not answer.line.is_idle
    return in_use or bool(answer.queue or answer.entries)


def _is_task(app: Any, what: str, *, unavailable: str) -> bool:
    """Whether its message waits, or something has happened to it. Spares an *unavailable* store."""
    try:
        waits = not unavailable and bool(runtime(app).existing_store().parked([what]))
        return waits or bool(_events(app, what))
    except BackendUnavailable:
        return False


def _events(app: Any, task_id: str) -> Sequence[HistoryEntry]:
    try:
        with closing(HistoryReader.from_app(app)) as reader:
            return reader.of_task(task_id, 1)
    except ConfigurationError:
        return ()


def _put_key(ctx: click.Context, app: Any, answer: KeyAnswer) -> None:
    put(ctx, Text("key ") + name(answer.key, "bold"), *_sentences(answer.sentences))
    if answer.queue:
        put(ctx, "", queue_table(answer.queue, answer.now, answer.messages))
    if answer.behind:
        more = "+" if answer.line and answer.line.more_wait else ""
        of_all = f"{len(answer.queue)} of {len(answer.queue) + answer.behind}{more}"
        click.echo(f"{of_all} that wait: --limit shows more", err=True)
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


def _timeline(entries: Sequence[HistoryEntry], clock: Clock) -> Table:
    """What happened, to whom."""
    rows = [
        [name(entry.task_id), name(entry.task_name), Text(one_line(describe(entry, clock)))]
        for entry in entries
    ]
    return table("TASK ID", "TASK", "WHAT HAPPENED", rows=rows)


def _plain_key(answer: KeyAnswer) -> dict[str, Any]:
    return {
        "kind": "key",
        "key": answer.key,
        "line": answer.line and plain_line(answer.line, answer.now),
        "total": len(answer.queue) + answer.behind,
        "queue": [_plain_entry(entry, answer.messages) for entry in answer.queue],
        "sentences": answer.sentences,
        "events": list(map(asdict, answer.entries)),
    }


def _plain_task(answer: Answer) -> dict[str, Any]:
    plain = asdict(answer)
    return {"kind": "task", "events": plain.pop("entries"), **plain}
