"""Who waits is not looked at where it cannot matter, and is looked at where it does."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.state import WINDOW, Claim, Mode, Outcome, WaitMode
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redis import scripts as redis_scripts
from celery_dlock.stores.redis.scripts import Script
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing.contract.words import QUEUE, claim, running, woken
from tests.contract.redis_store import store_on
from tests.contract.twins import KEY, SECOND, Clock, Twin, assert_alike
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

Operations = list[tuple[Any, ...]]

_numbers = itertools.count()


def _claim(task: str, wait: WaitMode = WaitMode.NOT, **others: Any) -> Claim:
    terms: dict[str, Any] = {"ttl": 4 * SECOND, "patience": 60 * SECOND, **others}
    return Claim(KEY, task, "1", wait=wait, **terms)


def _enter(*claims: Claim) -> Operations:
    return [("enter", claim, b"message") for claim in claims]


def _leave(claim: Claim, outcome: Outcome = Outcome.OVER) -> Operations:
    return [("leave", claim, outcome, b"message")]


def _crowd(**terms: Any) -> Operations:
    """More than an operation looks at."""
    return _enter(*(_claim(f"w{n}", QUEUE, **terms) for n in range(WINDOW + 9)))


LAST = _claim(f"w{WINDOW + 8}")
A, B, C, D = (_claim(task, QUEUE) for task in "abcd")
LATE = replace(B, gives_up=5 * SECOND)
KEPT = replace(A, keep=True)
PLACED = _claim("p", WaitMode.PLACE, patience=2 * SECOND)

#: Each ends where who waits matters, and a script that does not look there answers otherwise.
SEEN: dict[str, tuple[str, str, Operations]] = {
    "somebody gives up": (
        "return not gives_up or",
        "return true or",
        [*_enter(replace(A, ttl=60 * SECOND), LATE, C), ("pass", 6 * SECOND), *_enter(D)],
    ),
    "a later one gives up earlier": (
        "return one and other and math.min(one, other) or one",
        "return one",
        [
            *_enter(replace(A, ttl=60 * SECOND), replace(B, gives_up=9999 * SECOND)),
            *[*_enter(replace(C, gives_up=5 * SECOND)), ("pass", 6 * SECOND), *_enter(D)],
        ],
    ),
    "a holder has its message here": (
        "== 1 then return true end",
        "== 1 then return end",
        _enter(KEPT, B, _claim("c")),
    ),
    "more than one is let in": (
        "and closed(state, entry)",
        "",
        [*_enter(A), *_crowd(limit=99), ("pass", 4 * SECOND), *_leave(LAST, Outcome.ABANDONED)],
    ),
    "the queue changes before all are let in": (
        "if not closed(state) or",
        "if",
        [*_enter(KEPT), *_crowd(limit=99), *_leave(KEPT)],
    ),
    "the first has a place": (
        "entry and not entry.expires and",
        "entry and",
        [*_enter(A, PLACED, B, C), ("pass", 3 * SECOND), *_leave(A)],
    ),
    "readers wait": (
        "modes[EXCLUSIVE] and (modes[SHARED] or taken >= least)",
        "taken >= least",
        [*_enter(A, *(_claim(task, QUEUE, mode=Mode.SHARED) for task in "bc")), *_leave(A)],
    ),
}


def _compare(server: RedisServer, folder: Path, ops: Operations) -> None:
    """To the rules on SQLite: as on Redis, they are given no more than the head of a queue."""
    clock = Clock()
    options = BackendOptions(prefix=f"unseen{next(_numbers)}", clock=clock)
    with (
        closing(SqliteBackend.from_url(f"sqlite:///{folder}/twin.db", options)) as machine,
        closing(RedisBackend.from_url(server.url, options)) as store,
    ):
        assert_alike(Twin(machine), Twin(store), clock, ops)


@pytest.mark.parametrize("case", SEEN)
def test_who_waits_is_looked_at_where_it_matters(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    condition, wider, ops = SEEN[case]
    _compare(redis_server, tmp_path, ops)
    for name in ("ENTER", "LEAVE"):
        text = getattr(redis_scripts, name).text
        assert text.count(condition) == 1
        monkeypatch.setattr(redis_scripts, name, Script.with_text(text.replace(condition, wider)))
    with pytest.raises(AssertionError):
        _compare(redis_server, tmp_path, ops)


#: What is read and what is written; a command that is added here keeps everybody waiting.
INSIDE = {
    "parked": "exists get time exists hexists hexists zrange hset hsetnx zadd set",
    "released": "get time exists hexists zrange hdel zrem exists zadd set hget",
    "its turn": "exists get time exists hexists get set hdel hget hdel zadd set",
}


def test_what_a_script_asks_of_redis_while_others_wait(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        first, *others = (claim(f"w{number}", wait=QUEUE) for number in range(3 * WINDOW))
        running(store.backend.enter(first))
        for each in others[1:]:
            store.backend.enter(each, b"message")
        second, newcomer = others[1], others[0]
        asked: dict[str, Callable[[], object]] = {
            "parked": lambda: store.backend.enter(newcomer, b"message"),
            "released": lambda: woken(store.backend.leave(first, Outcome.OVER)),
            "its turn": lambda: running(store.backend.enter(second, b"message")),
        }
        for name, operation in asked.items():
            with store.counted() as cost:
                operation()
            assert cost.commands == Counter(["evalsha", *INSIDE[name].split()]), name
