"""Which keys there are on Redis: its own walk over all names, and the indexes of who waits.

Nothing but a key's state says that it is held, and no index knows it: to keep one would cost each
task more than its lock. So a walk meets the names of everybody, and a page may be empty. A server
that has started anew, or a replica that was promoted, has its names in another order: a walk that
is under way then may leave keys out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from celery_dlock.stores.base import DeadMessage, KeyPage
from celery_dlock.stores.redis import wire
from celery_dlock.stores.redis.scripts import Command
from celery_dlock.stores.unreadable import is_text

#: So many names of Redis are looked at for one page, and at least so many at a time.
MOST_NAMES, LEAST_NAMES = 10_000, 10

#: So many task ids, and so many dead letters, are asked for by one command.
IDS, BODIES = 1000, 100

#: What asks the store some commands, all in one flight.
Ask = Callable[[Sequence[Command]], list[Any]]

#: Told where to go on and how many names to look at: where to go on next, and names.
Step = Callable[[int, int], Sequence[Any]]

_NUMBERS = r"([0-9]{1,20})"
_HELD = re.compile(f"h{_NUMBERS}")
_WAITING = re.compile(f"w{_NUMBERS}:{_NUMBERS}")


def position(cursor: str, *, waiting: bool) -> tuple[int, ...]:
    """Where Redis is to go on. Raises :exc:`ValueError` for what no page has given."""
    if not cursor:
        return (0, 0) if waiting else (0,)
    match = (_WAITING if waiting else _HELD).fullmatch(cursor)
    numbers = tuple(map(int, match.groups())) if match else ()
    if not numbers or max(numbers) >= 2**64 or (waiting and numbers[0] >= wire.SHARDS):
        raise ValueError("this is not a cursor of a list of keys")
    return numbers


def held(ask: Callable[[Command], Any], prefix: str, at: int, limit: int) -> KeyPage:
    """Keys that have a state, of the one server that answers *ask*."""
    keys, at = walk(with_state(ask, prefix), prefix, at, limit)
    return KeyPage(tuple(keys), f"h{at}" if at else None)


def swapped(ask: Callable[[Command], Any], prefix: str, limit: int) -> Iterator[list[str]]:
    """The names under which something was put, about *limit* at a time, on the one server that
    answers *ask*. Redis may tell a name twice.
    """
    step, at = _with(ask, prefix, "swap"), 0
    while True:
        names, at = walk(step, prefix, at, limit)
        yield names
        if at == 0:
            return


def with_state(ask: Callable[[Command], Any], prefix: str) -> Step:
    """The steps through the states that lie on one server."""
    return _with(ask, prefix, "state")


def _with(ask: Callable[[Command], Any], prefix: str, part: str) -> Step:
    pattern = wire.pattern(prefix, part)
    return lambda at, count: ask(("SCAN", at, "MATCH", pattern, "COUNT", count))


def walk(step: Step, prefix: str, at: int, limit: int) -> tuple[list[str], int]:
    """About *limit* keys, or as many as are found, and where to go on: 0 at the end."""
    keys, looked, count = list[str](), 0, min(max(limit, LEAST_NAMES), MOST_NAMES)
    while count > 0:
        cursor, names = step(at, count)
        named = [wire.key_named(prefix, name) for name in names]
        keys += [key for key in named if key is not None]
        at, looked = int(cursor), looked + count
        if at == 0 or len(keys) >= limit:
            break
        # As many more as the rest is likely to need.
        wanted = math.ceil((limit - len(keys)) * looked / len(keys)) if keys else looked
        count = min(max(wanted, LEAST_NAMES), MOST_NAMES - looked)
    return keys, at


def with_messages(
    ask: Ask,
    indexes: Sequence[str],
    at: tuple[int, ...],
    limit: int,
) -> KeyPage:
    """Keys with messages, which are always due some time: shard by shard, all in one flight."""
    first, within = at
    commands: list[Command] = [
        ("ZSCAN", index, within if n == first else 0, "COUNT", max(limit, LEAST_NAMES))
        for n, index in enumerate(indexes)
        if n >= first
    ]
    keys: list[str] = []
    for n, (cursor, members) in enumerate(ask(commands), first):
        keys += [key for member, _ in members if (key := wire.key_of(member)) is not None]
        if int(cursor):
            return KeyPage(tuple(keys), f"w{n}:{int(cursor)}")
        if len(keys) >= limit and n + 1 < len(indexes):
            return KeyPage(tuple(keys), f"w{n + 1}:0")
    return KeyPage(tuple(keys), None)


def items_of(ask: Ask, prefix: str, task_ids: Collection[str]) -> list[list[wire.Item]]:
    """Where each shard has messages of *task_ids*; it takes the same whatever waits."""
    by_shard: list[list[wire.Item]] = [[] for _ in range(wire.SHARDS)]
    names = [task_id.encode() for task_id in task_ids if is_text(task_id)]
    shards = wire.of_shards(prefix, "tasks")
    for start in range(0, len(names), IDS):
        some = names[start : start + IDS]
        for items, answer in zip(
            by_shard, ask([("HMGET", shard, *some) for shard in shards]), strict=True
        ):
            for name, packed in zip(some, answer, strict=True):
                items.extend(wire.items_of(name, packed or b""))
    return by_shard


def oldest_dead(ask: Ask, prefix: str, limit: int) -> list[DeadMessage]:
    """The *limit* messages that are dead longest; of all others nothing is read but the name."""
    shards = wire.of_shards(prefix, "died")
    answers = ask([("ZRANGE", shard, 0, limit - 1, "WITHSCORES") for shard in shards])
    oldest = sorted(
        (at, name, number) for number, rows in enumerate(answers) for name, at in wire.scores(rows)
    )
    names: list[list[bytes]] = [[] for _ in shards]
    for _, name, number in oldest[:limit]:
        names[number].append(name)
    return dead_named(ask, prefix, names)


def dead_named(ask: Ask, prefix: str, names: Sequence[Sequence[bytes]]) -> list[DeadMessage]:
    """The dead letters that are called by *names* in each shard.

    One that is replayed meanwhile is left out.
    """
    parts = [
        (shard, some[start : start + BODIES])
        for shard, some in zip(wire.of_shards(prefix, "dead"), names, strict=True)
        for start in range(0, len(some), BODIES)
    ]
    answers = ask([("HMGET", shard, *part) for shard, part in parts]) if parts else []
    return [
        wire.dead_message(name, body)
        for (_, part), answer in zip(parts, answers, strict=True)
        for name, body in zip(part, answer, strict=True)
        if body is not None
    ]
