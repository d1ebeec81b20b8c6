"""What store, result backend and history know of one task, and which of them do not answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend

from celery_dlock.core.debounce import named
from celery_dlock.core.sentences import listed
from celery_dlock.core.state import Cooling, Grant, Holder, KeyState, Waiting, task_id_of
from celery_dlock.errors import BackendUnavailable, ConfigurationError, LockContended, LockLost
from celery_dlock.monitoring.history_reader import HistoryEntry, HistoryReader
from celery_dlock.ops.overview import (
    Held,
    OnHold,
    QueueEntry,
    cooling_of,
    look,
    names_in_use,
    other_broker,
    queue_of,
    time_of,
)
from celery_dlock.ops.unique import Living, living
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import DeadMessage, LockBackend

#: Keys that are looked through at the most, for tasks of which nobody knows the key.
ALL_KEYS = 10_000

#: Events of a task that are read, and tasks in its way that are told by name.
EVENTS = 200
NAMED = 3


@dataclass(frozen=True, slots=True)
class Result:
    """A state, the result or error with it, since when if it is final, and the task's name."""

    state: str
    value: Any
    at: datetime | None
    name: str | None

    @property
    def skip(self) -> Mapping[str, Any] | None:
        """What a task has returned that was skipped."""
        value = self.value
        is_skip = isinstance(value, dict) and value.get("skipped") is True and "key" in value
        return value if self.state == states.SUCCESS and is_skip else None


def _result_of(app: Any, task_id: str) -> Result | str | None:
    """The result of a task, a sentence that says why there is none, or ``None``: nothing yet."""
    backend = app.backend
    if isinstance(backend, DisabledBackend):
        return "no results are kept: with a result_backend the end of a task would be known"
    if type(backend).__module__ == "celery.backends.rpc":
        return "results go back over rpc:// to the sender of a task, and cannot be read here"
    try:
        meta = backend.get_task_meta(task_id, cache=False)
    except Exception as exc:  # of any driver, and of what is stored there
        return f"the result backend did not answer: {type(exc).__name__}: {exc}"
    if meta.get("status", states.PENDING) == states.PENDING:
        return None
    return Result(meta["status"], meta.get("result"), _at(meta.get("date_done")), meta.get("name"))


def _at(value: Any) -> datetime | None:
    """Celery writes it in UTC, some versions without saying so."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """In the line for *key*: ``number`` counts from 1, and ``total`` are in line.

    ``entry`` is what stands there: a message, or what keeps a place for a task that comes back by
    itself. ``woken`` are the ids of the others whose turn has come, and ``cooling`` are slots that
    nobody has and nobody gets yet; ``hold`` is what a person has put the key on. ``retry`` is that
    of another task, for which the key may be reserved until it is due.
    """

    key: str
    entry: QueueEntry
    holders: tuple[Held, ...]
    woken: tuple[str, ...]
    number: int
    total: int
    cooling: tuple[Cooling, ...] = ()
    hold: OnHold | None = None
    retry: QueueEntry | None = None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """All that the store has of one task, but for what may be in keys that are ``unreadable``.

    ``looked_through`` is ``False`` if keys were too many. It was so at *now*, by the store's clock.
    """

    now: datetime
    holds: tuple[tuple[str, Held], ...] = ()
    places: tuple[QueuePosition, ...] = ()
    dead: tuple[DeadMessage, ...] = ()
    looked_through: bool = True
    unreadable: tuple[str, ...] = ()
    living: tuple[Living, ...] = ()


def store_facts(
    backend: LockBackend, task_id: str, keys: Collection[str], *, everywhere: bool = False
) -> StoreFacts:
    """What *backend* has of *task_id*, at *keys* and wherever its message waits.

    With *everywhere* all keys are looked through if there is none to look at. Raises
    :exc:`~celery_dlock.BackendUnavailable`.
    """
    dead = tuple(backend.dead_of([task_id]))
    parked: dict[str, list[str]] = {}
    for key, task in backend.parked([task_id]):
        parked.setdefault(key, []).append(task)
    names = sorted({*parked, *keys})
    whole = True
    if names or not everywhere:
        states, unreadable = _look(backend, names)
    else:
        states, unreadable, whole = look_through(backend, [task_id])
    holds: list[tuple[str, Held]] = []
    places: list[QueuePosition] = []
    for key, state in states.items():
        held = [Held.of(h) for h in state.holders if task_id_of(h.task) == task_id]
        holds += [(key, holder) for holder in held]
        if held:
            continue
        place = _place(key, state, task_id)
        if place is None:  # it is behind those that an operation sees
            some = (_place_behind(backend, key, state, task) for task in parked.get(key, ()))
            place = next(filter(None, some), None)
        if place is not None:
            places.append(place)
    now = time_of(backend)
    unique = tuple(living(backend, task_id=task_id))
    return StoreFacts(now, tuple(holds), tuple(places), dead, whole, tuple(unreadable), unique)


def _look(backend: LockBackend, names: Sequence[str]) -> tuple[dict[str, KeyState], list[str]]:
    seen = dict(zip(names, look(backend, names), strict=True))
    readable = {key: state for key, state in seen.items() if isinstance(state, KeyState)}
    return readable, [key for key in names if key not in readable]


def look_through(
    backend: LockBackend, task_ids: Collection[str]
) -> tuple[dict[str, KeyState], list[str], bool]:
    """The first ten thousand keys in use: the states that one of these tasks is in, the keys that
    are unreadable, and whether those were all keys.
    """
    states: dict[str, KeyState] = {}
    unreadable: list[str] = []
    looked = 0
    for names in names_in_use(backend):
        seen, broken = _look(backend, names)
        states |= {key: state for key, state in seen.items() if _has_one_of(state, task_ids)}
        unreadable += broken
        looked += len(names)
        if looked > ALL_KEYS:
            return states, unreadable, False
    return states, unreadable, True


def _has_one_of(state: KeyState, task_ids: Collection[str]) -> bool:
    everybody: tuple[Holder | Grant | Waiting, ...]
    everybody = (*state.holders, *state.grants, *state.waiting)
    return any(task_id_of(one.task) in task_ids for one in everybody)


def _place(key: str, state: KeyState, task_id: str) -> QueuePosition | None:
    queue = queue_of(state)
    number, entry = next(
        ((n, queued) for n, queued in enumerate(queue, 1) if queued.task_id == task_id), (0, None)
    )
    if entry is None:
        return None
    return _position(key, state, entry, number)


def _place_behind(
    backend: LockBackend, key: str, state: KeyState, task: str
) -> QueuePosition | None:
    """Where *task* waits for *key*, of whose queue *state* is the head."""
    waiting = backend.position(key, task)
    if waiting is None:
        return None
    entry, before = waiting
    (queued,) = queue_of(replace(state, grants=(), waiting=(entry,)))
    turns = sum(grant.waits for grant in state.grants)
    running = len(state.waiting) + turns - len(queue_of(state))
    return _position(key, state, queued, turns + before - running + 1)


def _position(key: str, state: KeyState, entry: QueueEntry, number: int) -> QueuePosition:
    queue = queue_of(state)
    woken = tuple(one.task_id for one in queue if one.woken and one.task_id != entry.task_id)
    more = max(0, state.parked - sum(w.parked for w in state.waiting))
    total = len(queue) + more
    holders = tuple(map(Held.of, state.holders))
    cooling, hold = cooling_of(state), OnHold.of(state)
    retry = next((one for one in queue if one.due and one.task_id != entry.task_id), None)
    return QueuePosition(
        key, entry, holders, woken, min(number, total), total, cooling, hold, retry
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """The entries are in the order in which they happened; without ``store`` that did not answer.

    ``names`` are those of tasks that are in its way, by their ids, as far as they are known;
    ``brokers`` are those to which its messages belong, by key, where that is not this one.

    ``unavailable`` are sentences on those that did not answer, and ``unset`` on what is set up so
    that it cannot be known.
    """

    task_id: str
    store: StoreFacts | None
    result: Result | None
    entries: tuple[HistoryEntry, ...]
    names: Mapping[str, str]
    brokers: Mapping[str, str]
    unavailable: tuple[str, ...]
    unset: tuple[str, ...]

    @property
    def task_name(self) -> str | None:
        """As the latest event says, or the result."""
        named = [entry.task_name for entry in self.entries if entry.task_name]
        if named:
            return named[-1]
        return self.result.name if self.result else None

    def latest(self, *events: str) -> HistoryEntry | None:
        """The last of these that has happened."""
        entries = (entry for entry in reversed(self.entries) if entry.event in events)
        return next(entries, None)

    def all(self, event: str) -> list[HistoryEntry]:
        """Each of these, once, however many keys it concerns."""
        return list({entry.at: entry for entry in self.entries if entry.event == event}.values())


def facts(app: Any, task_id: str, *, store_unavailable: str = "") -> Facts:
    """Ask all three, but no store that is unavailable; those that do not answer are named."""
    unavailable: list[str] = []
    unset: list[str] = []
    reply = _result_of(app, task_id)
    if isinstance(reply, str):
        (unavailable if "did not answer" in reply else unset).append(reply)
    result = reply if isinstance(reply, Result) else None
    with _history(app, unavailable, unset) as history:
        entries = tuple(reversed(history(task_id, EVENTS)))
        store = None
        if store_unavailable:
            unavailable.append(f"the lock store did not answer: {store_unavailable}")
        else:
            store = _ask_store(app, task_id, result, entries, unavailable)
        if not isinstance(reply, str) and not _is_final(result):
            again = _result_of(app, task_id)  # it may have ended while the store was asked
            result = again if isinstance(again, Result) else result
        names = {
            held.task_id: entry.task_name
            for place in (store.places if store else ())
            for held in place.holders[:NAMED]
            for entry in history(held.task_id, 1)
        }
        brokers = _brokers(app, store, unavailable)
    return Facts(task_id, store, result, entries, names, brokers, tuple(unavailable), tuple(unset))


def _brokers(app: Any, store: StoreFacts | None, unavailable: list[str]) -> Mapping[str, str]:
    places = [place for place in (store.places if store else ()) if place.entry.parked]
    try:
        return {place.key: other_broker(app, place.key, place.entry.task) for place in places}
    except BackendUnavailable as exc:
        unavailable.append(f"the lock store did not answer: {exc}")
        return {}


def _ask_store(
    app: Any,
    task_id: str,
    result: Result | None,
    entries: Collection[HistoryEntry],
    unavailable: list[str],
) -> StoreFacts | None:
    everywhere = not _is_final(result)
    keys = _keys(entries, result)
    try:
        of_store = store_facts(runtime(app).existing_store(), task_id, keys, everywhere=everywhere)
    except BackendUnavailable as exc:
        unavailable.append(f"the lock store did not answer: {exc}")
        return None
    if of_store.unreadable:
        unavailable.append(
            f"the lock store cannot read {listed(list(map(repr, of_store.unreadable)))}"
        )
    if not of_store.looked_through:
        unavailable.append(f"only {ALL_KEYS} keys were searched; dlock_history would name the key")
    return of_store


def _is_final(result: Result | None) -> bool:
    return result is not None and result.state in states.READY_STATES


@contextmanager
def _history(
    app: Any, unavailable: list[str], unset: list[str]
) -> Iterator[Callable[[str, int], tuple[HistoryEntry, ...]]]:
    """A function that returns the latest events of a task; why it has none is appended, once."""
    try:
        reader = HistoryReader.from_app(app)
    except ConfigurationError as exc:
        unset.append(str(exc))
        yield lambda _task_id, _limit: ()
        return
    silent = False

    def of_task(task_id: str, limit: int) -> tuple[HistoryEntry, ...]:
        nonlocal silent
        if silent:
            return ()
        try:
            return reader.of_task(task_id, limit)
        except BackendUnavailable as exc:
            silent = True
            unavailable.append(str(exc))
            return ()

    try:
        yield of_task
    finally:
        reader.close()


def _keys(entries: Collection[HistoryEntry], result: Result | None) -> set[str]:
    """Where to look for a task in the store; anything may be written in a result."""
    keys: set[Any] = {entry.key for entry in entries if entry.event != "StaleRejected"}
    value = result.value if result else None
    if isinstance(value, LockContended | LockLost):
        keys.add(value.key)
    elif isinstance(value, dict):
        keys.add(value.get("key"))
    return {named(key) for key in keys if isinstance(key, str) and key}
