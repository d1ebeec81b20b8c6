"""What is locked, by whom, since when, and who waits: what the store says at one moment.

Instants are those of the store's clock, and so is *now*, by which ages are reckoned: that of the
host where somebody looks may be wrong. What is shown may have changed since: whoever acts on it
names what was shown, see :mod:`celery_dlock.ops.actions`.

Messages of another broker than this application's are told apart: processes of this one do not
publish them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Self

from celery_dlock.beat import leader
from celery_dlock.core.debounce import DEBOUNCED, named
from celery_dlock.core.edits import backlog
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import (
    WINDOW,
    Cooling,
    Grant,
    Holder,
    KeyState,
    Mode,
    Waiting,
    task_id_of,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.probe import NOBODYS
from celery_dlock.messages.envelope import OfAnotherVersion, ParkedMessage, Undecodable
from celery_dlock.messages.headers import chain_of
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend, live
from celery_dlock.stores.unreadable import KeysUnavailable, UnreadableKey, is_text

#: Names that are asked for at a time where all of them are looked through.
BATCH = 1000

#: A page that shows few of the names, because few match, looks through so many of them at most.
LOOKED_THROUGH = 20_000


@dataclass(frozen=True, slots=True)
class Held:
    """One holder of a key.

    ``token`` is its fencing token (0 for a reader), and ``owner`` names its claim. ``name`` is the
    name of its task, and ``where`` its worker and process; both are empty if unknown. It is asked
    to stop for the task ``replaced_by``, if there is one.
    """

    task_id: str
    name: str
    where: str
    owner: str
    token: int
    mode: Mode
    limit: int
    since: datetime
    expires: datetime
    replaced_by: str | None = None

    @classmethod
    def of(cls, holder: Holder) -> Self:
        return cls(
            task_id_of(holder.task),
            holder.name,
            holder.where,
            holder.owner,
            holder.token,
            holder.mode,
            holder.limit,
            instant(holder.since),
            instant(holder.expires),
            task_id_of(holder.replaced_by) if holder.replaced_by else None,
        )


@dataclass(frozen=True, slots=True)
class OnHold:
    """The person ``by`` keeps the key closed ``until`` then, ``because`` of something.

    It has been closed by people ``since``; the store calls this hold ``name``.
    """

    name: str
    by: str
    because: str
    since: datetime
    until: datetime

    @classmethod
    def of(cls, state: KeyState) -> Self | None:
        """What a person has put the key on; its time may be over by now."""
        hold = state.hold
        if hold is None:
            return None
        return cls(hold.name, hold.by, hold.because, instant(hold.since), instant(hold.until))

    @property
    def who(self) -> str:
        """Who wants it, and why."""
        return f"{self.by}: {self.because}"


def is_debounced(key: str) -> bool:
    """Whether *key* is no lock's, but that of calls that are debounced."""
    return key.startswith(DEBOUNCED)


def opens(cooling: Sequence[Cooling], now: datetime) -> datetime | None:
    """When the first slot opens of those that are *cooling* down still."""
    return next((at for slot in cooling if (at := instant(slot.until)) > now), None)


@dataclass(frozen=True, slots=True)
class Line:
    """One key: who holds it, how many wait, and since when the one that waits longest.

    Of those who come back by themselves the ones among the first ``WINDOW`` are counted; with
    ``more_wait`` there may be others behind.
    ``cooling`` are the slots that nobody has and nobody gets yet, the first to open first; ``hold``
    is what a person has put all of them on.
    ``reserved`` are the ids of those that have a turn, and their message elsewhere. ``woken`` are
    the ids of tasks whose turn has come and that have not taken it yet, of which so
    many have been ``unanswered`` for long. ``head`` is the whole identity of the first with a
    message, woken or waiting. Of a key that cannot be read there is nothing but ``unreadable``,
    which says why.
    """

    key: str
    holders: tuple[Held, ...]
    woken: tuple[str, ...]
    waiting: int
    oldest: datetime | None
    unreadable: str = ""
    head: str = ""
    unanswered: int = 0
    cooling: tuple[Cooling, ...] = ()
    reserved: tuple[str, ...] = ()
    more_wait: bool = False
    hold: OnHold | None = None

    @classmethod
    def of(cls, key: str, state: KeyState) -> Self:
        running = {holder.task for holder in state.holders}
        queue = [entry for entry in state.waiting if entry.task not in running]
        places = sum(not entry.parked for entry in queue)
        turns = [grant for grant in state.grants if grant.waits]
        heads = [grant.task for grant in state.grants if grant.parked]
        heads += [entry.task for entry in queue if entry.parked]
        return cls(
            key,
            tuple(map(Held.of, state.holders)),
            tuple(task_id_of(turn.task) for turn in turns if turn.parked),
            backlog(state) + places,
            instant(min(entry.arrived for entry in queue)) if queue else None,
            head=next(iter(heads), ""),
            unanswered=sum(grant.unanswered for grant in state.grants),
            cooling=cooling_of(state),
            reserved=tuple(task_id_of(turn.task) for turn in turns if not turn.parked),
            more_wait=places > 0 and len(state.waiting) >= WINDOW,
            hold=OnHold.of(state),
        )

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to show of it."""
        used = self.holders or self.woken or self.reserved or self.waiting
        return not (used or self.unreadable or self.cooling or self.hold)

    @property
    def debounces(self) -> bool:
        return is_debounced(self.key)

    def waits(self, now: datetime) -> bool:
        """Whether anybody waits for it; a call that is debounced waits for nobody."""
        return self.waiting > 0 and not (self.debounces and self.opens(now))

    def on_hold(self, now: datetime) -> OnHold | None:
        """What a person has put it on, if that lasts."""
        return self.hold if self.hold and self.hold.until > now else None

    def opens(self, now: datetime) -> datetime | None:
        """When the first slot opens that cools down; ``None`` if none does any more."""
        return opens(self.cooling, now)


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys, in no order, and what to ask for the next page with; ``None`` after the last."""

    lines: tuple[Line, ...]
    cursor: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One task that waits for a key.

    ``until`` is when its place expires or its message gives up, or ``None``. It is ``woken`` when
    its turn has come, or when it is to end for the reason ``ending``, and ``wakes`` counts how
    often it was woken. ``arrived`` is when it first asked, if that is known. A retry whose message
    waits until it is ``due`` was not woken yet.
    """

    task_id: str
    task: str
    mode: Mode
    parked: bool
    woken: bool
    arrived: datetime | None
    until: datetime | None
    ending: str | None
    wakes: int = 0
    due: datetime | None = None

    @property
    def reserved(self) -> bool:
        """Whether it has a turn for which it was not woken: its message is elsewhere."""
        return self.woken and not self.parked


@dataclass(frozen=True, slots=True)
class KeyDetails:
    """One key as it is: its line, who comes next, and how many wait *behind* those."""

    line: Line
    queue: tuple[QueueEntry, ...]
    behind: int
    now: datetime

    @classmethod
    def of(cls, app: Any, key: str, limit: int = WINDOW) -> Self:
        """With the first *limit* that come: no more are read, however many wait.

        Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer.
        """
        backend = runtime(app).existing_store()
        (state,) = look(backend, [key])
        now = time_of(backend)
        if isinstance(state, BackendUnavailable):
            return cls(_line(key, state), (), 0, now)
        if limit > WINDOW <= len(state.waiting):
            state = backend.peek(key, limit + len(state.holders))
            state = replace(state, waiting=live(state.waiting, backend.now()))
        queue = queue_of(state)
        hidden = state.parked - sum(waiting.parked for waiting in state.waiting)
        return cls(Line.of(key, state), queue[:limit], hidden + len(queue[limit:]), now)


def look(backend: LockBackend, keys: Sequence[str]) -> list[KeyState | BackendUnavailable]:
    """The state of each of *keys*, or why that one cannot be read.

    A store fails for all keys of a look when one makes no sense to it, which is right for a task
    and wrong for a list: who looks for the key that is broken must not be shown nothing. However
    many are broken, each costs a few more looks.

    Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer.
    """
    try:
        return [*backend.look(keys)]
    except KeysUnavailable as exc:
        others = [key for key in keys if key not in exc.keys]
        states = dict(zip(others, look(backend, others), strict=True))
        return [states.get(key, exc) for key in keys]
    except BackendUnavailable as exc:
        if _is_of_the_network(exc):
            raise  # who has waited for one answer in vain does not wait for another
        is_of_a_key = isinstance(exc, UnreadableKey)
        failures = [exc] if len(keys) == 1 else []
    # Out of the block above: an error that is kept keeps what the store was doing.
    if not is_of_a_key:
        backend.look([NOBODYS])  # fails if it is not the keys that are broken, but the store
    if failures:
        return [*failures]
    middle = len(keys) // 2
    return look(backend, keys[:middle]) + look(backend, keys[middle:])


def _is_of_the_network(error: BaseException | None) -> bool:
    """Whether no answer came, so that it cannot be a key that is wrong.

    ``False`` where that is not known: not all drivers tell.
    """
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


#: Of the years 1 and 9999 a day is left over, for the time zones.
_FIRST, _LAST = (
    int(datetime(*day, tzinfo=UTC).timestamp()) * SECOND for day in ((1, 1, 2), (9999, 12, 30))
)


def instant(microseconds: int) -> datetime:
    """A store's instant as a date, in UTC; one that no calendar has is the nearest that it has."""
    return datetime.fromtimestamp(min(max(microseconds, _FIRST), _LAST) / SECOND, UTC)


def time_of(backend: LockBackend) -> datetime:
    """What time it is by the store, or where that cannot be asked by this host."""
    try:
        return instant(backend.now())
    except BackendUnavailable:
        return datetime.now(UTC)


def page(
    app: Any,
    cursor: str = "",
    limit: int = 100,
    *,
    match: str = "",
    which: Callable[[Line], bool] = bool,
) -> Page:
    """About *limit* keys with *match* in their name, of those that *which* says yes to.

    Raises :exc:`~celery_dlock.BackendUnavailable`, and :exc:`ValueError` for a wrong *cursor*.
    """
    backend = runtime(app).existing_store()
    lines: list[Line] = []
    following: str | None = cursor
    looked = 0
    while following is not None and len(lines) < limit and looked < LOOKED_THROUGH:
        names = backend.keys(following, BATCH if match else limit)
        following = names.cursor
        looked += len(names.keys) + 1
        some = [key for key in dict.fromkeys(names.keys) if match in key]
        lines += filter(which, lines_of(backend, some))
    return Page(tuple(lines), following, time_of(backend))


def lines_in_use(backend: LockBackend, match: str = "") -> Iterator[Line]:
    """Every key in use with *match* in its name, each once."""
    for names in names_in_use(backend):
        yield from lines_of(backend, [name for name in names if match in name])


def names_in_use(backend: LockBackend, *, waiting: bool = False) -> Iterator[list[str]]:
    """The name of every key in use, or of those with messages, some at a time, each once."""
    cursor: str | None = ""
    seen = set[str]()
    while cursor is not None:
        page = backend.keys(cursor, BATCH, waiting=waiting)
        cursor = page.cursor
        yield [name for name in dict.fromkeys(page.keys) if name not in seen]
        seen.update(page.keys)


def lines_of(backend: LockBackend, keys: list[str]) -> list[Line]:
    """Those of *keys* that are in use still, or cannot be read.

    The library's own are left out: no task waits for them, and `dlock beat` shows the beats.
    """
    keys = [key for key in keys if not (key.startswith(leader.KEYS) or key == NOBODYS)]
    lines = (_line(key, state) for key, state in zip(keys, look(backend, keys), strict=True))
    return [line for line in lines if not line.is_idle]


def _line(key: str, state: KeyState | BackendUnavailable) -> Line:
    if isinstance(state, BackendUnavailable):
        return Line(key, (), (), 0, None, unreadable=str(state))
    return Line.of(key, state)


def line(app: Any, key: str) -> Line:
    """One key as it is, also if it is idle."""
    return KeyDetails.of(app, key).line


def as_stored(app: Any, key: str) -> str:
    """The key that a person means by *key*: that one if it is in use, else its canonical text.

    Raises :exc:`~celery_dlock.ConfigurationError` for what cannot be a key.
    """
    return named(key) if not is_text(key) or line(app, key).is_idle else key


def cooling_of(state: KeyState) -> tuple[Cooling, ...]:
    """The slots that cool down, the first to open first; some may have done so by now."""
    return tuple(sorted(state.cooling, key=lambda slot: slot.until))


def queue_of(state: KeyState) -> tuple[QueueEntry, ...]:
    """Who is woken, and then who waits, in their order.

    The message that the store keeps of a running task is not among them.
    """
    running = {holder.task for holder in state.holders}
    waiting = (w for w in state.waiting if not (w.parked and w.task in running))
    turns = (grant for grant in state.grants if grant.waits)
    return (*map(_woken, turns), *(_waits(entry, state) for entry in waiting))


def _woken(grant: Grant) -> QueueEntry:
    until = None if grant.parked else instant(grant.due)
    ending = grant.ending and grant.ending.value
    return QueueEntry(
        task_id_of(grant.task),
        grant.task,
        grant.mode,
        grant.parked,
        woken=not grant.early,
        arrived=None if grant.arrived is None else instant(grant.arrived),
        until=until,
        ending=ending,
        wakes=grant.woken,
        due=instant(grant.due) if grant.early else None,
    )


def _waits(entry: Waiting, state: KeyState) -> QueueEntry:
    until = entry.expires
    if entry.parked and entry.gives_up is not None:
        until = entry.gives_up + state.paused  # pauses of its key do not count
    return QueueEntry(
        task_id_of(entry.task),
        entry.task,
        entry.mode,
        entry.parked,
        False,
        instant(entry.arrived),
        None if until is None else instant(until),
        None,
    )


#: Messages that are read to answer one question; each is read whole.
MOST_MESSAGES = 20

#: Keys of which the doctor looks at who comes next.
KEYS = 100


@dataclass(frozen=True, slots=True)
class OtherBrokerMessage:
    """A message that comes next for *key*, and its broker."""

    key: str
    task_id: str
    broker: str


def other_broker(app: Any, key: str, task: str) -> str:
    """The broker of the message of *task* that waits for *key*; empty for ours, or if not known.

    Raises :exc:`~celery_dlock.BackendUnavailable`.
    """
    return _about(app, key, task).broker


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """The name of its task, and its broker, which is empty for ours; both are if not known.

    If the key is kept for it as the next step of a chain, it is ``of_chain`` of that task id.
    """

    name: str = ""
    broker: str = ""
    of_chain: str = ""

    @property
    def sentence(self) -> str:
        """For people, of the next step of a chain; empty for others."""
        return f"next: {self.name}, of the chain of {self.of_chain}" if self.of_chain else ""


def _about(app: Any, key: str, task: str) -> MessageFacts:
    locks = runtime(app)
    message = locks.existing_store().message(key, task)
    try:
        entry = ParkedMessage.decode(key, task, message or b"")
    except (Undecodable, OfAnotherVersion):
        return MessageFacts()
    name = entry.headers.get("task")
    broker = "" if entry.broker == locks.wake.broker else entry.broker
    return MessageFacts(name if isinstance(name, str) else "", broker, chain_of(entry.headers))


def messages_of_heads(app: Any, lines: Iterable[Line]) -> Mapping[str, MessageFacts]:
    """The message of who comes next, by key, for the first of *lines* that nobody holds."""
    free = (line for line in lines if line.head and not line.holders)
    return _messages(app, ((line.key, line.key, line.head) for line in free))


def messages_of(app: Any, key: str, queue: Iterable[QueueEntry]) -> Mapping[str, MessageFacts]:
    """What the first messages of *queue* say, by the identity of their task."""
    return _messages(app, ((entry.task, key, entry.task) for entry in queue if entry.parked))


def _messages(app: Any, asked: Iterable[tuple[str, str, str]]) -> Mapping[str, MessageFacts]:
    """Under the first of each three, for a key and a task, as far as the store answers."""
    messages: dict[str, MessageFacts] = {}
    with suppress(BackendUnavailable):  # what is shown beside it is not lost for that
        for name, key, task in islice(asked, MOST_MESSAGES):
            messages[name] = _about(app, key, task)
    return messages


def messages_of_other_brokers(app: Any) -> Iterator[OtherBrokerMessage]:
    """Those that come next for one of a hundred keys with messages."""
    backend = runtime(app).existing_store()
    names = list(backend.keys("", KEYS, waiting=True).keys[:KEYS])
    for line in lines_of(backend, names):
        if line.head and (broker := other_broker(app, line.key, line.head)):
            yield OtherBrokerMessage(line.key, task_id_of(line.head), broker)
