"""What people do to locks by hand, and the dead messages that they are shown for it.

An action names what was shown, and touches nothing else: a key that went to another holder since it
was looked at is left alone. Whoever is woken by it is woken by the process that did it, as with
any operation. Nothing of a message is unpickled, whatever it says that it is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from celery_dlock.core.events import Discarded, Subject
from celery_dlock.core.operations import Cancel, Discard, Leave, OpenSlot, Operation, Replay
from celery_dlock.core.state import Cause, Claim, Cooling, Left, Outcome, task_id_of
from celery_dlock.messages.envelope import OfAnotherVersion, ParkedMessage, Undecodable
from celery_dlock.ops import unique
from celery_dlock.ops.facts import look_through
from celery_dlock.ops.overview import Held, instant, time_of
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import DeadMessage, LockBackend

V = TypeVar("V")

logger = logging.getLogger("celery_dlock")

#: What becomes of a holder whose key is released.
CONSEQUENCES = (
    "A running body goes on until its next renewal, at most a third of its ttl from now. Then its "
    'lease is lost; with on_lost="abort" the body is aborted.',
    "Its fenced writes are refused from the next holder's first fenced write on.",
    "Its other writes are NOT stopped: two bodies may write at once.",
    "If the store keeps its message (keep=True) the task runs again, and this run counts as lost.",
)

#: So many dead letters are replayed by one command.
ALL_DEAD = 10_000


@dataclass(frozen=True, slots=True)
class Message:
    """The message of one task in the queue of one key; ``task`` is its whole identity.

    ``name`` is its task's, where that is known. It ``is_elsewhere`` if the key is only reserved for
    the task.
    """

    key: str
    task: str
    name: str = field(default="", compare=False)
    is_elsewhere: bool = field(default=False, compare=False)

    @property
    def task_id(self) -> str:
        return task_id_of(self.task)


def carry_out(app: Any, operation: Operation[V]) -> V:
    """Apply *operation*, and publish the messages that it wakes; its verdict.

    Raises :exc:`~celery_dlock.BackendUnavailable`; whether it was applied is then unknown.
    """
    locks = runtime(app)
    reply = locks.existing_store().apply(operation)
    locks.wake(reply.wakes)
    return reply.verdict


def release(app: Any, key: str, holder: Held) -> bool:
    """Take *key* from *holder*, as if its lease had expired now; ``False`` if it had it no more.

    A body that still runs learns of it with its next renewal, a third of the lease from now at the
    latest: its lease is lost, and its writes are refused where they are fenced. If the store keeps
    its message it runs again, and the run counts as lost.

    Raises :exc:`~celery_dlock.BackendUnavailable`; whether it was released is then unknown.
    """
    task, _, nonce = holder.owner.rpartition("|")
    # What a person takes away does not cool down: who is next may be what it was taken for.
    claim = Claim(key, task, nonce, ttl=0, mode=holder.mode, limit=holder.limit, begun=False)
    if not isinstance(carry_out(app, Leave(claim, Outcome.ABANDONED)), Left):
        return False
    had_it = (holder.name, holder.task_id, holder.where)
    logger.info("%r was released by an operator; %s[%s] on %s held it", key, *had_it)
    return True


def open_now(app: Any, key: str, cooling: Sequence[Cooling]) -> None:
    """Let the slots of *key* that are *cooling* down open now; who waits is woken.

    Raises :exc:`~celery_dlock.BackendUnavailable`; whether they are open is then unknown.
    """
    for slot in cooling:
        carry_out(app, OpenSlot(key, slot.name))


def find(app: Any, task_ids: Collection[str]) -> list[Message]:
    """The messages that wait, or were woken, under any of these ids; if the store has none, the
    keys that are reserved for them, among the first ten thousand in use.
    """
    store = runtime(app).existing_store()
    found = [Message(*pair) for pair in store.parked(task_ids)]
    return found or _reserved(store, task_ids)


def _reserved(store: LockBackend, task_ids: Collection[str]) -> list[Message]:
    states, _, _ = look_through(store, task_ids)
    return [
        Message(key, turn.task, is_elsewhere=True)
        for key, state in states.items()
        for turn in state.grants
        if turn.waits and not turn.parked and task_id_of(turn.task) in task_ids
    ]


def cancel(app: Any, message: Message) -> bool:
    """Have *message* end as revoked instead of waiting on; ``False`` if it waits no more.

    A key that is reserved for what is elsewhere is free at once; the task ends when it comes.

    What runs goes on, and a duplicate that is on its way from the broker still comes.
    """
    return carry_out(app, Cancel(message.key, message.task))


def broadcasts(app: Any) -> bool:
    """Whether the broker broadcasts: else ``revoke()`` and all remote control reach no worker."""
    with app.connection_for_write() as connection:
        by_option = connection.transport_options.get("supports_fanout")  # of Amazon SQS
        return bool(by_option) or "fanout" in connection.transport.implements.exchange_type


def dead_under(app: Any, task_id: str | None) -> list[Message]:
    """The dead messages of one task, or the first ten thousand of all."""
    backend = runtime(app).existing_store()
    letters = backend.dead(ALL_DEAD) if task_id is None else backend.dead_of([task_id])
    entries = map(DeadLetterEntry.of, letters)
    return [Message(entry.key, entry.task, entry.name or "") for entry in entries]


def expired(app: Any, messages: Collection[Message]) -> set[Message]:
    """Those dead *messages* that a worker would discard, and the store forget: to replay one of
    them loses it.
    """
    letters = runtime(app).existing_store().dead_of({message.task_id for message in messages})
    bodies = {Message(letter.key, letter.dead.task): letter.message for letter in letters}
    return {
        message
        for message in messages
        if message in bodies and _has_expired(message, bodies[message])
    }


def _has_expired(of: Message, message: bytes) -> bool:
    try:
        entry = ParkedMessage.decode(of.key, of.task, message)
        expires = datetime.fromisoformat(entry.headers["expires"])
    except (Undecodable, OfAnotherVersion, LookupError, TypeError, ValueError):
        return False
    return (expires if expires.tzinfo else expires.replace(tzinfo=UTC)) < datetime.now(UTC)


def replay(app: Any, message: Message) -> bool:
    """Have a dead *message* wait for its key again; ``False`` if it is not dead, or has run since.

    That it lost runs is forgotten.
    """
    return carry_out(app, Replay(message.key, message.task))


#: What becomes of a task whose dead letter is discarded.
DISCARDED = (
    "It never runs, and a duplicate of its message is dropped. Its message cannot be restored.",
    "Its result stays as it is: what waits for it, such as a chord, is not told.",
    "If it is unique its unique claim ends, and the next call is published.",
)


def discard(app: Any, messages: Iterable[Message], by: str) -> Iterator[bool]:
    """Forget dead *messages* for the person *by*; of each, ``False`` if it is not dead any more.

    Raises :exc:`~celery_dlock.BackendUnavailable`; whether the next one is discarded is then
    unknown.
    """
    locks = runtime(app)
    claims: dict[str, list[unique.Living]] = {}
    for claim in unique.living(locks.existing_store()):
        claims.setdefault(claim.task_id, []).append(claim)
    for message in messages:
        discards = Discard(message.key, message.task, locks.done_ttl(queues=True))
        was_dead = carry_out(app, discards)
        if was_dead:
            for claim in claims.get(message.task_id, ()):
                unique.end(app, claim)
            locks.sinks.emit(Discarded(Subject(message.task_id, message.name, ""), message.key, by))
        yield was_dead


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
