"""Dead letters: what people are shown of them, and sending one again or giving it up.

Nothing of a message is unpickled, whatever it says that it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Self

from celery_dlock.core.events import Discarded, Subject
from celery_dlock.core.operations import Discard, Replay
from celery_dlock.core.state import Cause, task_id_of
from celery_dlock.messages.envelope import OfAnotherVersion, ParkedMessage, Undecodable
from celery_dlock.ops import unique
from celery_dlock.ops.action import Action, NotSoAnyMore, apply, readable
from celery_dlock.ops.overview import instant, time_of
from celery_dlock.ops.plain_text import shown
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import DeadMessage

#: So many dead letters are replayed or discarded by one command.
ALL_DEAD = 10_000

#: What becomes of a task whose dead letter is replayed, and discarded.
REPLAYED = (
    "It waits for its key again, and runs when its turn has come.",
    "The store forgets its lost runs, and that it is done: what it did before may be done again.",
)
DISCARDED = (
    "It never runs, and a duplicate of its message is dropped. Its message cannot be restored.",
    "Its result stays as it is: what waits for it, such as a chord, is not told.",
    "If it is unique its unique claim ends, and the next call is published.",
)

_NOT_DEAD = "is no longer a dead letter: it has run, was replayed or discarded"
_EXPIRED = "has expired: a worker would discard it, so it stays where it is"


@dataclass(frozen=True, slots=True)
class DeadLetterEntry:
    """A dead message of ``size`` bytes; ``task`` is its whole identity.

    ``name`` of its task, ``arguments`` and ``broker`` are ``None`` where the envelope does not
    tell. The arguments may be secret; a publisher can say with ``argsrepr`` how they are to be
    shown.
    """

    key: str
    task_id: str
    task: str
    name: str | None
    arguments: str | None
    broker: str | None
    cause: Cause
    since: datetime
    size: int

    @classmethod
    def of(cls, letter: DeadMessage) -> Self:
        name = arguments = broker = None
        try:
            entry = ParkedMessage.decode(letter.key, letter.dead.task, letter.message)
        except (Undecodable, OfAnotherVersion):
            pass
        else:
            name, arguments = _text(entry.headers.get("task")), _arguments(entry)
            broker = _text(entry.broker)
        dead = letter.dead
        return cls(
            letter.key,
            task_id_of(dead.task),
            dead.task,
            name,
            arguments,
            broker,
            dead.cause,
            instant(dead.at),
            len(letter.message),
        )


@dataclass(frozen=True, slots=True)
class DeadLetterList:
    """The first that are dead, those first that are dead longest, and whether there are *more*.

    *now* is the store's, as are the instants.
    """

    letters: tuple[DeadLetterEntry, ...]
    more: bool
    now: datetime

    @classmethod
    def of(cls, app: Any, limit: int) -> Self:
        """The first *limit*. Raises :exc:`~celery_dlock.BackendUnavailable`."""
        backend = runtime(app).existing_store()
        letters = backend.dead(limit + 1)
        more = len(letters) > limit
        return cls(tuple(map(DeadLetterEntry.of, letters[:limit])), more, time_of(backend))


def _arguments(entry: ParkedMessage) -> str | None:
    """As the publisher wants them shown; else as they are, if that can be read without danger."""
    args, kwargs = (_text(entry.headers.get(name)) for name in ("argsrepr", "kwargsrepr"))
    if args is not None or kwargs is not None:
        return f"{args or '()'} {kwargs or '{}'}"
    if entry.content_type != "application/json":
        return None
    try:
        body = json.loads(entry.body)
        return f"{body[0]!r} {body[1]!r}"
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def letters(app: Any, task_id: str | None = None) -> list[DeadMessage]:
    """The dead letters of one task, or the first ten thousand of all."""
    store = runtime(app).existing_store()
    return store.dead(ALL_DEAD) if task_id is None else store.dead_of([task_id])


def replay(app: Any, key: str, task: str) -> Action:
    """The action of :func:`replays` for one dead letter."""
    return replays(app, [_one(app, key, task)])[0]


def discard(app: Any, key: str, task: str) -> Action:
    """The action of :func:`discards` for one dead letter."""
    return discards(app, [_one(app, key, task)])[0]


def _one(app: Any, key: str, task: str) -> DeadMessage:
    readable(app, key)
    for letter in letters(app, task_id_of(task)):
        if (letter.key, letter.dead.task) == (key, task):
            return letter
    raise NotSoAnyMore(f"Nothing was done: {shown(task_id_of(task))} {_NOT_DEAD}")


def replays(app: Any, dead: Iterable[DeadMessage]) -> list[Action]:
    """Have each of the *dead* letters wait for its key again; its lost runs are forgotten.

    One that has expired stays: a worker would discard it, and the store forget it.
    """

    def of(letter: DeadMessage) -> Action:
        key, task, expired = letter.key, letter.dead.task, _has_expired(letter)

        def do(_: str) -> bool:
            return not expired and apply(app, Replay(key, task))

        return _action(
            letter,
            name="replay",
            consequences=REPLAYED,
            done=f"waits for {shown(key)} again",
            nothing=_EXPIRED if expired else _NOT_DEAD,
            do=do,
        )

    return [*map(of, dead)]


def discards(app: Any, dead: Iterable[DeadMessage]) -> list[Action]:
    """Forget each of the *dead* letters, and end the unique claims of its task."""

    @cache
    def claims() -> dict[str, list[unique.Living]]:
        found: dict[str, list[unique.Living]] = {}
        for claim in unique.living(runtime(app).existing_store()):
            found.setdefault(claim.task_id, []).append(claim)
        return found

    def of(letter: DeadMessage) -> Action:
        entry = DeadLetterEntry.of(letter)

        def do(by: str) -> bool:
            locks, of_task = runtime(app), claims().get(entry.task_id, ())
            was_dead = apply(app, Discard(entry.key, entry.task, locks.done_ttl(queues=True)))
            if was_dead:
                for claim in of_task:
                    unique.end(app, claim.claim, claim.task_id)
                subject = Subject(entry.task_id, entry.name or "", "")
                locks.sinks.emit(Discarded(subject, entry.key, by))
            return was_dead

        return _action(
            letter,
            name="discard",
            consequences=DISCARDED,
            done="is discarded",
            nothing=_NOT_DEAD,
            do=do,
        )

    return [*map(of, dead)]


def _action(letter: DeadMessage, *, name: str, done: str, nothing: str, **more: Any) -> Action:
    entry = DeadLetterEntry.of(letter)
    task = shown(entry.task_id)
    about = {"key": entry.key, "task_id": entry.task_id, "task_name": entry.name}
    return Action(
        name=name,
        title=f"{name.capitalize()} the message",
        names={"key": entry.key, "task": entry.task},
        order=f"{name} {task} for {shown(entry.key)}",
        facts={**about, "cause": entry.cause, "since": entry.since},
        done=f"{task} {done}",
        nothing=f"{task} {nothing}",
        **more,
    )


def _has_expired(letter: DeadMessage) -> bool:
    try:
        entry = ParkedMessage.decode(letter.key, letter.dead.task, letter.message)
        expires = datetime.fromisoformat(entry.headers["expires"])
    except (Undecodable, OfAnotherVersion, LookupError, TypeError, ValueError):
        return False
    return (expires if expires.tzinfo else expires.replace(tzinfo=UTC)) < datetime.now(UTC)
