"""Each field of all that a shortcut looks at has other values once, and stores answer by the rules.

The fields are those that there are: a new one is tried by itself, and a store that does not know it
has to leave it to the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from enum import Enum
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgpack
import pytest
from redis import Redis

from celery_dlock.core import machine, plain, turns
from celery_dlock.core.state import (
    Cause,
    Claim,
    Cooling,
    Dead,
    Ending,
    Grant,
    Holder,
    KeyState,
    Mode,
    OperatorHold,
    Outcome,
    Run,
    Waiting,
    WaitMode,
)
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.change import REMEMBER_LOST
from celery_dlock.stores.consensus.load import Loaded
from celery_dlock.stores.consensus.record import as_state, decode
from celery_dlock.stores.consensus.rows import Kind, Name, Row
from celery_dlock.stores.consensus.save import Saving, left_alone, taken_free
from celery_dlock.stores.memory import MemoryBackend, _Key, _Past
from celery_dlock.stores.redis import wire
from celery_dlock.stores.redis.store import RedisBackend
from tests.contract.twins import KEY, SECOND, Clock, Twin, assert_alike
from tests.services.redis import RedisServer

T = TypeVar("T")

NOW = Clock().now
MINUTE = 60 * SECOND

_numbers = itertools.count()


def _claim(task: str, wait: WaitMode = WaitMode.QUEUE) -> Claim:
    return Claim(
        KEY, task, "1", MINUTE, wait=wait, patience=MINUTE, name="charge", where="host:1", entry=1
    )


def _waits(task: str, rank: int) -> Waiting:
    return Waiting(task, Mode.EXCLUSIVE, rank, NOW - MINUTE, None, name="charge", entry=1)


HOLDER = Holder("h", "1", Mode.EXCLUSIVE, 1, 0, 7, NOW - MINUTE, NOW + MINUTE, "charge", "host:1")
TURN = Grant("w", Mode.EXCLUSIVE, 1, True, 1, NOW + MINUTE, arrived=NOW - MINUTE)
QUEUE = (_waits("x", 5), _waits("y", 6), _waits("z", 7))

#: What is stored, who comes, and how it ends if it leaves: what each shortcut is for.
SCENES: dict[str, tuple[KeyState, Claim, Outcome | None]] = {
    "free": (KeyState(), _claim("a"), None),
    "free, without a message": (KeyState(), _claim("a", WaitMode.PLACE), None),
    "alone, is done": (KeyState(holders=(HOLDER,)), _claim("h"), Outcome.DONE),
    "alone, is over": (KeyState(holders=(HOLDER,)), _claim("h"), Outcome.OVER),
    "behind": (KeyState(holders=(HOLDER,), waiting=QUEUE), _claim("a"), None),
    "looks": (KeyState(holders=(HOLDER,), waiting=QUEUE), _claim("a", WaitMode.LOOK), None),
    "its turn": (KeyState(grants=(TURN,), waiting=QUEUE), _claim("w"), None),
    "hands on": (KeyState(holders=(HOLDER,), waiting=QUEUE), _claim("h"), Outcome.DONE),
}

#: One of each record that a state can have more of.
ONE: dict[Any, Any] = {
    Holder: replace(HOLDER, task="other", slot=1, token=8),
    Grant: replace(TURN, task="other"),
    Waiting: _waits("other", 8),
    Cooling: Cooling("other", Mode.EXCLUSIVE, 1, NOW + 3 * SECOND),
    OperatorHold: OperatorHold("other", "ann", "why", NOW - SECOND, NOW + 3 * SECOND),
    Dead: Dead("other", Mode.EXCLUSIVE, Cause.UNREADABLE, NOW - SECOND),
}

#: Durations, counts and instants: past, soon, later than all others.
NUMBERS = (0, 1, 2, 9, 3 * SECOND, NOW - SECOND, NOW + 3 * SECOND, NOW + 9 * MINUTE)


#: What no limit, no lease and no task is.
NEVER = {("limit", 0), ("ttl", 0), ("task", "")}


def _values(kind: Any, now: Any, task: str) -> Iterator[Any]:
    """Other values for a field of that type which is *now* so."""
    if get_origin(kind) is tuple:
        (of, _) = get_args(kind)
        yield from ((), (*now, ONE[of])) if of in ONE else ((), ((task, 1),), ((task, 10),))
    elif get_origin(kind) is frozenset:
        yield from (frozenset(), frozenset({task}))
    elif get_args(kind):
        for each in get_args(kind):
            yield from _values(each, now, task)
    elif issubclass(kind, Enum):
        yield from kind
    else:
        yield from {
            bool: (False, True),
            int: NUMBERS,
            str: ("", "other", task),
            NoneType: (None,),
        }.get(kind, (ONE.get(kind),))


def varied(record: T, task: str) -> Iterator[tuple[str, T]]:
    """*record* with each field in turn of other values, and which one that is."""
    kinds = get_type_hints(type(record))
    for field in fields(record):  # type: ignore[arg-type]
        now = getattr(record, field.name)
        for value in _values(kinds[field.name], now, task):
            if value != now and (field.name, value) not in NEVER:
                yield f"{field.name}={value!r}", replace(record, **{field.name: value})  # type: ignore[type-var]


def _scenes(state: KeyState, claim: Claim) -> Iterator[tuple[str, KeyState, Claim]]:
    for what, comes in varied(claim, "x"):
        if comes.key == KEY:
            yield f"claim.{what}", state, comes
    for what, changed in varied(state, claim.task):
        yield what, changed, claim
    for number, record in enumerate(state.holders):
        for what, holder in varied(record, claim.task):
            changed = replace(state, holders=_with(state.holders, number, holder))
            yield f"holders.{what}", changed, claim
    for number, turn in enumerate(state.grants):
        for what, grant in varied(turn, claim.task):
            changed = replace(state, grants=_with(state.grants, number, grant))
            yield f"grants.{what}", changed, claim
    for number, waits in enumerate(state.waiting):
        for what, entry in varied(waits, claim.task):
            changed = replace(state, waiting=_with(state.waiting, number, entry))
            yield f"waiting.{what}", changed, claim


def _with(records: tuple[T, ...], number: int, record: T) -> tuple[T, ...]:
    return (*records[:number], record, *records[number + 1 :])


@pytest.mark.server("redis")
@pytest.mark.parametrize("scene", SCENES)
def test_redis_answers_as_the_machine_for_any_field(redis_server: RedisServer, scene: str) -> None:
    state, claim, outcome = SCENES[scene]
    with redis_server.client() as client:
        for what, found, comes in _scenes(state, claim):
            try:
                _compare(redis_server, client, _consistent(found), comes, outcome)
            except AssertionError as exc:
                raise AssertionError(f"{scene}: {what}") from exc


def _consistent(state: KeyState) -> KeyState:
    """*state* with what follows from its queue, of which no task has two entries."""
    queue = {entry.task: entry for entry in state.waiting if entry.task not in _turns(state)}
    waiting = tuple(sorted(queue.values(), key=lambda entry: entry.rank))
    ranks = [entry.rank for entry in waiting] or [0]
    parked = sum(entry.parked for entry in waiting)
    return replace(state, waiting=waiting, parked=parked, first=ranks[0], last=ranks[-1], dead=())


def _turns(state: KeyState) -> set[str]:
    return {turn.task for turn in state.grants}


def _compare(
    server: RedisServer, client: Redis, state: KeyState, claim: Claim, outcome: Outcome | None
) -> None:
    clock = Clock()
    options = BackendOptions(prefix=f"field{next(_numbers)}", clock=clock)
    memory = MemoryBackend(options)
    _put_in_memory(memory, state)
    put_in_redis(client, options.prefix, state)
    comes = ("leave", claim, outcome, b"new") if outcome else ("enter", claim, b"new")
    later = [("pass", 6 * SECOND), ("sweep", 9), ("pass", 700 * SECOND), ("sweep", 9)]
    with closing(RedisBackend.from_url(server.url, options)) as store:
        assert_alike(Twin(memory), Twin(store), clock, [comes, *later])


def _messages(state: KeyState) -> list[str]:
    waiting = [entry.task for entry in state.waiting if entry.parked]
    return waiting + [turn.task for turn in state.grants if turn.parked]


def _put_in_memory(store: MemoryBackend, state: KeyState) -> None:
    messages = dict.fromkeys(_messages(state), b"message")
    past = {task: _Past(done_until=NOW + MINUTE) for task in state.done}
    for task, count in state.lost:
        past.setdefault(task, _Past()).lost = count
        past[task].lost_until = NOW + REMEMBER_LOST
    bare = replace(state, done=frozenset(), lost=())
    store._keys[KEY] = _Key(bare, messages, past)
    store._token = max((holder.token for holder in state.holders), default=0)


def put_in_redis(client: Redis, prefix: str, state: KeyState) -> None:
    """Put *state* there in the form that ``lua/state.lua`` and ``lua/line.lua`` read."""
    names = dict(zip(("state", "queue", "entries", "lost", "token"), _names(prefix), strict=True))
    due = turns.due(state)
    ends = [entry.expires for entry in state.waiting if entry.expires is not None]
    gives_up = [entry.gives_up for entry in state.waiting if entry.gives_up is not None]
    row: list[Any] = [list(map(_row, state.holders)), list(map(_row, state.grants))]
    row += [state.parked, max(ends, default=0), _coded(due), bool(state.waiting), state.paused]
    row += [min(gives_up, default=False), *_others(state)]
    if state.holders or state.grants or state.waiting or _others(state):
        client.set(names["state"], _packed(row))
    for entry in state.waiting:
        client.zadd(names["queue"], {_head(entry) + entry.task.encode(): entry.rank})
        client.hset(names["entries"], entry.task, _head(entry) + b"message" * entry.parked)
    for turn in state.grants:
        if turn.parked:
            client.hset(names["entries"], turn.task, _head(_waits(turn.task, 0)) + b"message")
    for task, count in state.lost:
        client.hset(names["lost"], task, f"{count} {NOW + REMEMBER_LOST}")
    for task in state.done:
        client.set(wire.names(wire.base_name(prefix, KEY), task)[-1], NOW + MINUTE)
    client.set(names["token"], max((holder.token for holder in state.holders), default=0))
    if due is not None:
        shard, _, member = wire.base_name(prefix, KEY).partition(":{" + KEY)
        client.zadd(f"{shard}:due", {"{" + KEY + member: due})


def _names(prefix: str) -> list[str]:
    return wire.names(wire.base_name(prefix, KEY))


def _head(entry: Waiting) -> bytes:
    parts: tuple[Any, ...] = (entry.mode, entry.arrived, entry.expires, entry.gives_up)
    parts += (entry.ordered, entry.name, entry.entry, entry.keyset)
    coded = [None if part is None else _coded(part) for part in parts]
    return b"".join(map(_packed, [*coded, _others(entry) or None]))


def _row(record: Any) -> list[Any]:
    known = plain.known_fields(cast("Any", type(record)))
    return [*(_coded(getattr(record, name)) for name in known), *_others(record)]


def _others(record: Any) -> list[Any]:
    others = plain.others(record) if type(record) in plain.KNOWN else {}
    return [part for name, value in others.items() for part in (name, _coded(value))]


def _coded(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_row, value))
    if isinstance(value, OperatorHold):
        return _row(value)
    if isinstance(value, Mode):
        return wire.MODE_CODES[value]
    if isinstance(value, Ending):
        return wire.ENDING_CODES[value]
    return False if value is None else value


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=False)
    return packed


def test_stores_that_compare_and_set_answer_by_the_rules_whatever_one_field_is() -> None:
    taker = _claim("a")
    for what, claim in varied(taker, "x"):
        step = machine.enter(KeyState(), claim, NOW, -1)
        taken = taken_free(claim, _row_of(claim), NOW)
        if taken is not None:
            assert isinstance(step.verdict, Run), what
            assert taken == Saving(claim, Loaded(NOW), step, leased=True).commit(b"new", {}), what
    for outcome in Outcome:
        for what, claim in varied(taker, "x"):
            if (claim.task, claim.nonce, claim.key) == (taker.task, taker.nonce, taker.key):
                _leave(taker, claim, outcome, what)


def _leave(taker: Claim, claim: Claim, outcome: Outcome, what: str) -> None:
    taken = taken_free(taker, _row_of(taker), NOW)
    assert taken is not None
    assert taken.version_row is not None
    version_row = Row(taken.version_row, "stamp", 7)
    record = decode(version_row.value)
    holders = tuple(replace(h, token=7, expires=NOW + h.expires) for h in record.holders)
    found = Loaded(NOW, version_row, record, rows={taker.owner: Row(b"", "", 7)})
    found.state = as_state(record, holders, [], NOW)
    left = left_alone(claim, _row_of(claim), outcome, version_row, NOW)
    if left is not None:
        step = machine.leave(found.state, claim, outcome, NOW)
        assert left == Saving(claim, found, step, leased=True).commit(b"new", {}), (what, outcome)
        assert step.wakes == (), (what, outcome)


def _row_of(claim: Claim) -> Name:
    return Name(Kind.HOLDER, claim.key, claim.owner)
