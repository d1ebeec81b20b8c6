"""``dlock release``, ``cancel``, ``replay`` and ``discard``: to what was shown, and to nothing
else; and ``dlock beat``: who leads, and having another one lead.

Before anything is done there is a question. Without a terminal there is nobody to answer; a program
is not asked, and gets a document of what was done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
from rich.table import Table

from celery_dlock.beat import leader
from celery_dlock.beat.leader import Status, reads_a_database
from celery_dlock.cli.command import (
    Command,
    Option,
    app_of,
    dead_tasks,
    for_programs,
    keys,
    readable,
    waiting_tasks,
)
from celery_dlock.cli.output import (
    as_json,
    closed_for,
    name,
    one_line,
    plain_hold,
    plain_holder,
    put,
    shown,
    table,
)
from celery_dlock.cli.show import HOLDING, holding
from celery_dlock.core.state import Mode
from celery_dlock.ops import actions, holds
from celery_dlock.ops.event_text import lasting
from celery_dlock.ops.overview import Held, KeyDetails, Line, OnHold, as_stored, instant, line
from celery_dlock.ops.unique import end, living
from celery_dlock.runtime import runtime

#: Said beside what cannot be cancelled.
REVOKE = "it may run, or be at the broker: `celery control revoke {}`"
NO_BROADCAST = (
    "it may run, or be at the broker, which broadcasts nothing: `celery control revoke` reaches no "
    "worker"
)

#: Said of what cannot be replayed.
EXPIRED = "has expired: a worker would discard it, so it stays where it is"
REPLAYED = "is no longer a dead letter: it has run, was replayed or discarded"

#: For scripts.
yes_option: Option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command(
    cls=Command, short_help="Take a key from its holder, or open one on hold or cooling down."
)
@click.argument("key", shell_complete=keys)
@click.option("--token", type=click.IntRange(1), help="Only the holder with this token.")
@click.option("--owner", help="Only this holder; `ls --json` shows its owner.")
@click.option("--all-holders", is_flag=True, help="All holders.")
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
    yes: bool,
    for_programs: bool,
) -> None:
    """Take KEY from its holder, which is shown first; or open a key on hold or cooling down.

    A running body is not stopped. Exits with 1 if nothing was released, also if the key has
    changed hands meanwhile.
    """
    named = (token is not None) + (owner is not None) + all_holders
    if named > 1:
        raise click.UsageError("give only one of --token, --owner and --all-holders")
    if key.startswith(leader.KEYS):
        raise click.ClickException(
            f"{shown(key)} is the key of a beat: use `dlock beat --step-down`"
        )
    app = app_of(ctx)
    key = as_stored(app, key)
    details = KeyDetails.of(app, key)
    hold = None if named else details.line.on_hold(details.now)
    if hold is not None:
        ctx.exit(_end(app, details, hold, yes=yes, for_programs=for_programs))
    opens = None if details.line.holders or named else details.line.opens(details.now)
    if opens is not None:
        _open(app, details, opens, yes=yes, for_programs=for_programs)
        return
    chosen = _chosen(readable(details.line), token, owner)
    if chosen:
        _ask(ctx, details, chosen, all_holders=all_holders, yes=yes, for_programs=for_programs)
    with _document({"key": key}, "holders", for_programs=for_programs) as done:
        if not chosen:
            raise click.ClickException(_nobody(details.line, token, owner))
        for holder in chosen:
            released = _released(app, key, holder, say=not for_programs)
            done.append({**plain_holder(holder, details.now), "released": released})
    ctx.exit(0 if all(entry["released"] for entry in done) else 1)


def _end(app: Any, details: KeyDetails, hold: OnHold, *, yes: bool, for_programs: bool) -> int:
    """Whoever has it goes on, and the next one gets it; the exit code."""
    key = shown(details.line.key)
    question = f"{key} is {closed_for(hold, details.now)}. End that now?"
    agreed(question, yes=yes, for_programs=for_programs)
    ended = _said(
        holds.end_hold(app, details.line.key, hold.name),
        f"{key} is on hold no more",
        f"Nothing was done: {key} is on another hold by now",
        people=not for_programs,
    )
    if for_programs:
        about = {"key": details.line.key, "hold": plain_hold(hold)}
        click.echo(as_json({**about, "holders": (), "ended": ended}))
    return 0 if ended else 1


def _open(app: Any, details: KeyDetails, opens: datetime, *, yes: bool, for_programs: bool) -> None:
    """Nobody holds it, and nobody gets it before *opens*."""
    left = lasting((opens - details.now).total_seconds())
    key, what = shown(details.line.key), "It is cooling down"
    if details.line.debounces:
        what = "A call is debounced"
    question = f"Nobody holds {key}. {what} for another {left}. Open it now?"
    agreed(question, yes=yes, for_programs=for_programs)
    actions.open_now(app, details.line.key, details.line.cooling)
    if for_programs:
        opened = [instant(slot.until) for slot in details.line.cooling]
        click.echo(as_json({"key": details.line.key, "holders": [], "opened": opened}))
    else:
        click.echo(f"{key} is open")


def _ask(
    ctx: click.Context,
    details: KeyDetails,
    chosen: Sequence[Held],
    *,
    all_holders: bool,
    yes: bool,
    for_programs: bool,
) -> None:
    """Say who has it and what becomes of them, and go on if the answer is yes."""
    if not for_programs:
        put(ctx, _holders(details))
    if len(chosen) > 1 and not all_holders:
        raise click.UsageError("there are several holders: give --token, --owner or --all-holders")
    if not yes and not for_programs:
        _say_consequences(actions.CONSEQUENCES)
    whom = f"task {shown(chosen[0].task_id)}" if len(chosen) == 1 else f"{len(chosen)} holders"
    question = f"Take {shown(details.line.key)} from {whom}?"
    agreed(question, yes=yes, for_programs=for_programs)


def _chosen(line: Line, token: int | None, owner: str | None) -> list[Held]:
    """Those that are meant."""
    return [
        held
        for held in line.holders
        if (token is None or (held.mode is not Mode.SHARED and held.token == token))
        and (owner is None or held.owner == owner)
    ]


def _nobody(line: Line, token: int | None, owner: str | None) -> str:
    """Why none of its holders is meant."""
    if not line.holders:
        return f"nobody holds {shown(line.key)}"
    which = f"has token {token}" if token is not None else f"is {shown(owner or '')}"
    now = ", ".join(_who(held) for held in line.holders)
    return f"no holder of {shown(line.key)} {which}; it is held by {now}"


def _released(app: Any, key: str, holder: Held, *, say: bool) -> bool:
    """Release it, and tell whether that was still to be done; *say* so to people."""
    if actions.release(app, key, holder):
        if say:
            click.echo(f"{shown(key)} is released; {_who(holder)} had it")
        return True
    now = line(app, key).holders
    instead = f"{', '.join(map(_who, now))} holds it" if now else "nobody holds it"
    click.echo(
        f"Nothing was released: {_who(holder)} no longer holds {shown(key)}; {instead}", err=True
    )
    return False


def _who(holder: Held) -> str:
    token = "reads" if holder.mode is Mode.SHARED else f"token {holder.token}"
    about = [shown(text) for text in (holder.name, holder.where) if text]
    return f"{shown(holder.task_id)} ({', '.join([*about, token])})"


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
    app = app_of(ctx)
    messages = actions.find(app, [task_id])
    claims = living(runtime(app).existing_store(), task_id=task_id)
    names = [shown(entry.claim) for entry in claims]
    if messages:
        queues = ", ".join(shown(message.key) for message in messages)
        question = f"Cancel {shown(task_id)}, which waits for {queues}?"
        agreed(question, yes=yes, for_programs=for_programs)
    elif claims:
        question = f"End the unique claim of {shown(task_id)}, {', '.join(names)}?"
        agreed(question, yes=yes, for_programs=for_programs)
    about = {"task_id": task_id, "claims": [entry.claim for entry in claims]}
    with _document(about, "messages", for_programs=for_programs) as done:
        if not messages and not claims:
            hint = REVOKE.format(shown(task_id)) if actions.broadcasts(app) else NO_BROADCAST
            raise click.ClickException(
                f"no message of {shown(task_id)} waits in the lock store, and no key is reserved "
                f"for it; {hint}"
            )
        for claim in claims:
            end(app, claim)
        if claims and not for_programs:
            ended = f"the unique claim has ended: the next call of {', '.join(names)} is published"
            click.echo(ended)
        for message in messages:
            cancelled = _said(
                actions.cancel(app, message),
                _ends(message),
                f"{shown(task_id)} no longer waits for {shown(message.key)}",
                people=not for_programs,
            )
            done.append({"key": message.key, "task": message.task, "cancelled": cancelled})
    ctx.exit(0 if all(entry["cancelled"] for entry in done) else 1)


def _ends(message: actions.Message) -> str:
    if message.is_elsewhere:
        return (
            f"{shown(message.key)} is released; {shown(message.task_id)} ends as revoked when its "
            "message comes"
        )
    return f"{shown(message.task_id)} is woken and will end as revoked"


@click.command(cls=Command, short_help="Send a dead letter again: it waits for its key and runs.")
@click.argument("task_id", required=False, shell_complete=dead_tasks)
@click.option("--all", "all_", is_flag=True, help="All dead letters.")
@yes_option
@for_programs
@click.pass_context
def replay(
    ctx: click.Context, *, task_id: str | None, all_: bool, yes: bool, for_programs: bool
) -> None:
    """Send the dead letter of TASK_ID again: it waits for its key and runs.

    Its lost runs are forgotten. One that has run by a duplicate of its message is only taken off
    the list. Exits with 1 then, or if there is no such dead letter, or if it has expired.
    """
    app = app_of(ctx)
    letters, whose = _dead_letters(app, task_id, all_=all_)
    if letters:
        agreed(f"Replay {whose}?", yes=yes, for_programs=for_programs)
    with _document({}, "messages", for_programs=for_programs) as done:
        if not letters:
            raise click.ClickException(whose)
        expired = actions.expired(app, letters)
        for message in letters:
            task, gone = shown(message.task_id), message in expired
            replayed = _said(
                not gone and actions.replay(app, message),
                f"{task} waits for {shown(message.key)} again",
                f"{task} {EXPIRED if gone else REPLAYED}",
                people=not for_programs,
            )
            done.append({**_plain_message(message), "replayed": replayed})
    ctx.exit(0 if all(entry["replayed"] for entry in done) else 1)


@click.command(cls=Command, short_help="Delete a dead letter: its task does not run.")
@click.argument("task_id", required=False, shell_complete=dead_tasks)
@click.option("--all", "all_", is_flag=True, help="All dead letters.")
@yes_option
@for_programs
@click.pass_context
def discard(
    ctx: click.Context, *, task_id: str | None, all_: bool, yes: bool, for_programs: bool
) -> None:
    """Discard the dead letter of TASK_ID: the task does not run.

    Its message is deleted and cannot be restored, and its result stays as it is. Exits with 1 if
    there is no such dead letter.
    """
    app = app_of(ctx)
    letters, whose = _dead_letters(app, task_id, all_=all_)
    if letters:
        if not yes and not for_programs:
            _say_consequences(actions.DISCARDED)
        agreed(f"Discard {whose}?", yes=yes, for_programs=for_programs)
    with _document({}, "messages", for_programs=for_programs) as entries:
        if not letters:
            raise click.ClickException(whose)
        answers = actions.discard(app, letters, holds.this_person())
        for message, done in zip(letters, answers, strict=True):
            discarded = _said(
                done,
                f"{shown(message.task_id)} is discarded",
                f"{shown(message.task_id)} {REPLAYED}",
                people=not for_programs,
            )
            entries.append({**_plain_message(message), "discarded": discarded})
    ctx.exit(0 if all(entry["discarded"] for entry in entries) else 1)


def _dead_letters(
    app: Any, task_id: str | None, *, all_: bool
) -> tuple[list[actions.Message], str]:
    """Those that are meant, and whose they are; or that there are none."""
    if (task_id is None) is not all_:
        raise click.UsageError("give either a task id or --all")
    letters = actions.dead_under(app, task_id)
    if task_id is None:
        return (
            letters,
            f"all {len(letters)} dead letters" if letters else "there are no dead letters",
        )
    if not letters:
        return letters, f"{shown(task_id)} has no dead letter: see `dlock dead`"
    keys_ = ", ".join(shown(letter.key) for letter in letters)
    return letters, f"{shown(task_id)} for {keys_}"


def _plain_message(message: actions.Message) -> dict[str, Any]:
    return {"key": message.key, "task_id": message.task_id, "task": message.task}


def _say_consequences(consequences: Sequence[str]) -> None:
    click.echo("\nWhat happens then:")
    for consequence in consequences:
        click.echo(click.wrap_text(consequence, 100, "  ", "  "))
    click.echo()


def agreed(question: str, *, yes: bool, for_programs: bool) -> None:
    """Go on if *yes*, or if the answer is.

    Raises :exc:`click.ClickException` where nobody can answer, and :exc:`click.exceptions.Exit`
    with 1 when the answer is no.
    """
    if yes:
        return
    if for_programs or not sys.stdin.isatty():
        raise click.ClickException(f"{question} There is no terminal to ask at: use --yes")
    if not click.confirm(question):
        click.echo("Nothing was done.")
        raise click.exceptions.Exit(1)


@contextmanager
def _document(
    about: Mapping[str, Any], name: str, *, for_programs: bool
) -> Iterator[list[dict[str, Any]]]:
    """A list of what was done, which programs are told at the end under *name*, beside *about*.

    They are also told where an error cuts it off: what it names was done.
    """
    done: list[dict[str, Any]] = []
    try:
        yield done
    finally:
        if for_programs:
            click.echo(as_json({**about, name: done}))


def _said(did: bool, done: str, nothing: str, *, people: bool) -> bool:
    """Whether something was done, of which *people* are told; that it was not is always said."""
    if not did:
        click.echo(nothing, err=True)
    elif people:
        click.echo(done)
    return did


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
        stepped_down = status.leader
        status = _step_down(app, status, timeout)
    click.echo(as_json(_plain(status)) if for_programs else _lines(app, status, stepped_down))
    if status.leader is None:
        ctx.exit(1)


def _step_down(app: Any, before: Status, timeout: float) -> Status:
    """Ask the leader of *before* to go; what is so when another one leads."""
    if before.leader is None:
        raise click.ClickException("no beat leads: start one with `celery beat -S dlock`")
    if not before.standbys:
        raise click.ClickException(f"no beat stands by to take over from {before.leader}")
    if not before.ask_to_step_down(runtime(app).backend):
        raise click.ClickException(f"{before.leader} no longer leads")
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        status = Status.of(app)
        if status.leader not in (None, before.leader):
            return status
        time.sleep(LOOK)
    raise click.ClickException(
        f"{before.leader} was asked to step down, and no other beat leads yet"
    )


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
