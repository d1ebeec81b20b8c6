"""What store, result backend and history know of one task, and who of them is silent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import states

from celery_dlock.core.canonical import canonical
from celery_dlock.errors import BackendUnavailable, ConfigurationError, LockContended, LockLost
from celery_dlock.inspection.results import Result, result_of
from celery_dlock.inspection.standing import ALL_KEYS, Standing, standing
from celery_dlock.inspection.wording import listed
from celery_dlock.monitoring.history_reader import Entry, HistoryReader
from celery_dlock.tasks.runtime import runtime

#: Events of a task that are read, and tasks in its way that are called by name.
EVENTS = 200
NAMED = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """The entries are in the order in which they happened; no standing: the store did not answer.

    ``names`` are those of tasks that are in its way, by their ids, as far as they are known.

    ``gaps`` are sentences on what could not be known; of them ``away`` are those that did not
    answer, while the others are set up that way.
    """

    task_id: str
    standing: Standing | None
    result: Result | None
    entries: tuple[Entry, ...]
    names: Mapping[str, str]
    away: tuple[str, ...]
    unset: tuple[str, ...]

    @property
    def task_name(self) -> str | None:
        """As the latest event says, or the result."""
        named = [entry.task_name for entry in self.entries if entry.task_name]
        if named:
            return named[-1]
        return self.result.name if self.result else None

    def latest(self, *events: str) -> Entry | None:
        """The last of these that has happened."""
        found = (entry for entry in reversed(self.entries) if entry.event in events)
        return next(found, None)

    def all(self, event: str) -> list[Entry]:
        """Each of these, once, however many keys it concerns."""
        return list({entry.at: entry for entry in self.entries if entry.event == event}.values())


def facts(app: Any, task_id: str, *, store_away: str = "") -> Facts:
    """Ask everybody but a store that is away; who does not answer is named."""
    away: list[str] = []
    unset: list[str] = []
    told = result_of(app, task_id)
    if isinstance(told, str):
        (away if "did not answer" in told else unset).append(told)
    result = told if isinstance(told, Result) else None
    with _history(app, away, unset) as history:
        entries = tuple(reversed(history(task_id, EVENTS)))
        stands = None
        if store_away:
            away.append(f"the lock store did not answer: {store_away}")
        else:
            stands = _standing(app, task_id, result, entries, away)
        if not isinstance(told, str) and not _is_final(result):
            again = result_of(app, task_id)  # it may have ended while the store was asked
            result = again if isinstance(again, Result) else result
        names = {
            held.task_id: entry.task_name
            for place in (stands.places if stands else ())
            for held in place.holders[:NAMED]
            for entry in history(held.task_id, 1)
        }
    return Facts(task_id, stands, result, entries, names, tuple(away), tuple(unset))


def _standing(
    app: Any, task_id: str, result: Result | None, entries: Collection[Entry], away: list[str]
) -> Standing | None:
    everywhere = not _is_final(result)
    keys = _keys(entries, result)
    try:
        found = standing(runtime(app).existing_store(), task_id, keys, everywhere=everywhere)
    except BackendUnavailable as exc:
        away.append(f"the lock store did not answer: {exc}")
        return None
    if found.unreadable:
        away.append(f"the lock store cannot read {listed(list(map(repr, found.unreadable)))}")
    if not found.looked_through:
        away.append(f"only {ALL_KEYS} keys were looked through; dlock_history would say which")
    return found


def _is_final(result: Result | None) -> bool:
    return result is not None and result.state in states.READY_STATES


@contextmanager
def _history(
    app: Any, away: list[str], unset: list[str]
) -> Iterator[Callable[[str, int], tuple[Entry, ...]]]:
    """What tells of a task its latest events; why it tells nothing is appended, once."""
    try:
        reader = HistoryReader.from_app(app)
    except ConfigurationError as exc:
        unset.append(str(exc))
        yield lambda _task_id, _limit: ()
        return
    silent = False

    def of_task(task_id: str, limit: int) -> tuple[Entry, ...]:
        nonlocal silent
        if silent:
            return ()
        try:
            return reader.of_task(task_id, limit)
        except BackendUnavailable as exc:
            silent = True
            away.append(str(exc))
            return ()

    try:
        yield of_task
    finally:
        reader.close()


def _keys(entries: Collection[Entry], result: Result | None) -> set[str]:
    """Where to look for a task in the store; anything may be written in a result."""
    found: set[Any] = {entry.key for entry in entries if entry.event != "StaleRejected"}
    value = result.value if result else None
    if isinstance(value, LockContended | LockLost):
        found.add(value.key)
    elif isinstance(value, dict):
        found.add(value.get("key"))
    return {canonical(key) for key in found if isinstance(key, str) and key}
