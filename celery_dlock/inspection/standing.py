"""Where one task stands in the lock store: what it holds, where it waits, whether it is dead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_dlock.backends.base import Burial, LockBackend
from celery_dlock.core.state import Grant, Holder, KeyState, Waiting, task_id_of
from celery_dlock.inspection.looking import look
from celery_dlock.inspection.overview import Held, instant, names_in_use, time_of

#: Dead messages, and keys, that are looked through at the most.
ALL_DEAD = 10_000
ALL_KEYS = 100_000


@dataclass(frozen=True, slots=True)
class Place:
    """In the line for *key*: ``number`` counts from 1, and ``total`` are in line.

    ``called`` are the ids of those ahead whose turn has come, ``grant`` says that it is one itself.
    A place that is not ``parked`` is kept for a task that comes back by itself, until ``until``;
    one that is parked gives up then, if ever.
    """

    key: str
    holders: tuple[Held, ...]
    called: tuple[str, ...]
    number: int
    total: int
    parked: bool
    arrived: datetime | None
    until: datetime | None
    grant: Grant | None


@dataclass(frozen=True, slots=True)
class Standing:
    """All that the store has of one task, but for what may be in keys that are ``unreadable``.

    ``looked_through`` is ``False`` if keys were too many. It was so at *now*, by the store's clock.
    """

    now: datetime
    holds: tuple[tuple[str, Held], ...] = ()
    places: tuple[Place, ...] = ()
    dead: tuple[Burial, ...] = ()
    looked_through: bool = True
    unreadable: tuple[str, ...] = ()


def standing(
    backend: LockBackend, task_id: str, keys: Collection[str], *, everywhere: bool = False
) -> Standing:
    """What *backend* has of *task_id*, at *keys* and wherever its message waits.

    With *everywhere* all keys are looked through if there is none to look at. Raises
    :exc:`~celery_dlock.BackendUnavailable`.
    """
    dead = tuple(b for b in backend.dead(ALL_DEAD) if task_id_of(b.dead.task) == task_id)
    parked = {key for key, _ in backend.parked([task_id])}
    names = sorted({*parked, *keys})
    whole = True
    if names or not everywhere:
        found, unreadable = _look(backend, names)
    else:
        found, unreadable, whole = _look_through(backend, task_id)
    holds: list[tuple[str, Held]] = []
    places: list[Place] = []
    for key, seen in found.items():
        # Behind those that an operation sees.
        hidden = key in parked and not _stands_in(seen, task_id)
        state = backend.peek(key) if hidden else seen
        mine = [Held.of(h) for h in state.holders if task_id_of(h.task) == task_id]
        holds += [(key, held) for held in mine]
        if not mine and (place := _place(key, state, task_id)):
            places.append(place)
    now = time_of(backend)
    return Standing(now, tuple(holds), tuple(places), dead, whole, tuple(unreadable))


def _look(backend: LockBackend, names: Sequence[str]) -> tuple[dict[str, KeyState], list[str]]:
    states = dict(zip(names, look(backend, names), strict=True))
    found = {key: state for key, state in states.items() if isinstance(state, KeyState)}
    return found, [key for key in names if key not in found]


def _look_through(
    backend: LockBackend, task_id: str
) -> tuple[dict[str, KeyState], list[str], bool]:
    found: dict[str, KeyState] = {}
    unreadable: list[str] = []
    looked = 0
    for names in names_in_use(backend):
        states, broken = _look(backend, names)
        found |= {key: state for key, state in states.items() if _stands_in(state, task_id)}
        unreadable += broken
        looked += len(names)
        if looked > ALL_KEYS:
            return found, unreadable, False
    return found, unreadable, True


def _stands_in(state: KeyState, task_id: str) -> bool:
    everybody: tuple[Holder | Grant | Waiting, ...]
    everybody = (*state.holders, *state.grants, *state.waiting)
    return any(task_id_of(one.task) == task_id for one in everybody)


def _place(key: str, state: KeyState, task_id: str) -> Place | None:
    running = {holder.task for holder in state.holders}
    waiting = [w for w in state.waiting if w.task not in running]
    line: list[Grant | Waiting] = [*state.grants, *waiting]
    numbers = [n for n, one in enumerate(line, 1) if task_id_of(one.task) == task_id]
    if not numbers:
        return None
    number = numbers[0]
    mine = line[number - 1]
    called = tuple(task_id_of(g.task) for g in state.grants if task_id_of(g.task) != task_id)
    more = max(0, state.parked - sum(w.parked for w in state.waiting))
    arrived, until = None, None
    if isinstance(mine, Waiting):
        until = mine.gives_up if mine.parked else mine.lapses
        arrived = instant(mine.arrived)
    return Place(
        key,
        tuple(map(Held.of, state.holders)),
        called,
        number,
        len(line) + more,
        mine.parked,
        arrived,
        None if until is None else instant(until),
        mine if isinstance(mine, Grant) else None,
    )
