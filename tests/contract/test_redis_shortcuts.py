"""The ways around the rules: they are taken where they may be, and nowhere else."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Busy, Claim, Mode, Outcome, Park, Run, WaitMode
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.redis import scripts as redis_scripts
from celery_dlock.stores.redis.scripts import Script
from celery_dlock.stores.redis.store import RedisBackend
from tests.contract.redis_store import store_on
from tests.contract.twins import KEY, SECOND, Clock, Twin, assert_alike
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

Operations = list[tuple[Any, ...]]

_numbers = itertools.count()


def _claim(task: str, nonce: str = "1", wait: WaitMode = WaitMode.NOT, **others: Any) -> Claim:
    return Claim(KEY, task, nonce, 4 * SECOND, wait=wait, patience=60 * SECOND, **others)


def _enter(claim: Claim) -> tuple[Any, ...]:
    return ("enter", claim, b"message")


def _leave(claim: Claim, outcome: Outcome = Outcome.OVER) -> tuple[Any, ...]:
    return ("leave", claim, outcome, b"message")


A, B, C = _claim("a"), _claim("b"), _claim("c")
TWO_A, TWO_B = replace(A, limit=2), replace(B, limit=2)
QUEUED, KEPT = _claim("a", wait=WaitMode.QUEUE), _claim("a", wait=WaitMode.QUEUE, keep=True)
DONE = _claim("a", done_ttl=3 * SECOND)

#: Each ends where a way that is taken too often leads elsewhere than the rules.
FREE: dict[str, tuple[str, str, Operations]] = {
    "somebody holds": ("STATE, DONE) > 0", "DONE) > 0", [_enter(A), _enter(B)]),
    "it is done": (
        "STATE, DONE) > 0",
        "STATE) > 0",
        [_enter(DONE), _leave(DONE, Outcome.DONE), _enter(DONE)],
    ),
    "runs were lost": (
        "not has_message(claim) or",
        "true or",
        [*[_enter(A), _leave(A, Outcome.ABANDONED)] * MAX_LOST_RUNS, _enter(QUEUED)],
    ),
    "readers have no token": (
        "claim.mode == EXCLUSIVE",
        "true",
        [_enter(replace(A, mode=Mode.SHARED))],
    ),
}
ALONE: dict[str, tuple[str, str, Operations]] = {
    "it is to run again": (
        "claim.plain and (outcome == 'done' or outcome == 'over')",
        "claim.plain",
        [_enter(QUEUED), _leave(QUEUED, Outcome.REPEAT)],
    ),
    "others hold": (
        "#holders == 1 and",
        "",
        [_enter(TWO_A), _enter(TWO_B), _leave(TWO_A)],
    ),
    "another one is expected": (
        "and #grants == 0",
        "",
        [_enter(TWO_A), _enter(TWO_B), _leave(replace(TWO_B, successor="c")), _leave(TWO_A)],
    ),
    "others wait": (
        "not queued and",
        "",
        [_enter(A), _enter(_claim("b", wait=WaitMode.QUEUE)), _leave(A)],
    ),
    "another task holds": ("and row[1] == task", "", [_enter(A), _leave(B)]),
    "another delivery holds": (
        "and row[2] == nonce",
        "",
        [_enter(A), _leave(_claim("a", "2"))],
    ),
    "it was done before": (
        "redis.call('EXISTS', DONE) == 0",
        "true",
        [_enter(DONE), _leave(replace(DONE, nonce="2"), Outcome.DONE), _leave(DONE)],
    ),
    "it is done now": (
        "if remembers then",
        "if false then",
        [_enter(DONE), _leave(DONE, Outcome.DONE), _enter(DONE)],
    ),
}

HELD, READER = replace(A, ttl=60 * SECOND), replace(QUEUED, mode=Mode.SHARED)
W, X, Y, Z = (replace(QUEUED, task=task) for task in "wxyz")
TWO_W, TWO_X = replace(W, limit=2), replace(X, limit=2)
REAP = ("reap", KEY)

#: Another one holds the key, and others wait; and the same when it is the turn of the first.
QUEUE = [_enter(HELD), _enter(W), _enter(X)]
TURN = [*QUEUE, _leave(HELD)]
#: Who never came to its turn is woken again meanwhile.
IN_VAIN = [*TURN, *[("pass", 700 * SECOND), ("sweep", 100)] * 9]
LONG = replace(X, ttl=9000 * SECOND)
AGAIN = [*IN_VAIN, _enter(LONG), _enter(Z), ("pass", 700 * SECOND)]
#: Some give up very much later, and some before all that is due then.
PATIENT, TEN = replace(W, gives_up=9999 * SECOND), replace(A, ttl=10 * SECOND)
LATER = [("renew", [replace(TEN, ttl=60 * SECOND)]), ("pass", 12 * SECOND), _enter(Z)]
SWEPT = [("pass", 12 * SECOND), ("sweep", 100)]

BEHIND: dict[str, tuple[str, str, Operations]] = {
    "somebody is woken again": ("or #state.grants ~= grants", "", [*AGAIN, _enter(Y)]),
    "no message is left": (
        "if claim.wait ~= 'queue' then return false end",
        "",
        [*QUEUE, _enter(replace(Y, wait=WaitMode.NOT))],
    ),
    "a place is kept": (
        "claim.wait ~= 'look' and claim.wait ~= 'not'",
        "false",
        [*QUEUE, _enter(replace(Y, wait=WaitMode.PLACE))],
    ),
    "a message does not count": (
        "return redis.call('HEXISTS', ENTRIES, holder.task) == 0",
        "return true",
        [_enter(replace(KEPT, ttl=60 * SECOND)), _enter(W), _enter(B)],
    ),
    "it gives up": (
        "return claim.gives_up == 0 or now + claim.gives_up > holder.expires",
        "return true",
        [_enter(HELD), _enter(PATIENT), _enter(replace(Y, gives_up=9 * SECOND)), *SWEPT],
    ),
    "it gives up before others": (
        "return one and other and math.min(one, other) or one",
        "return one",
        [_enter(TEN), _enter(PATIENT), _enter(replace(Y, gives_up=11 * SECOND)), *LATER],
    ),
    "few may wait": (
        "state.parked >= claim.max_waiting",
        "false",
        [*QUEUE, _enter(replace(Y, max_waiting=2))],
    ),
    "it runs": (
        "holder.task ~= claim.task and",
        "",
        [*QUEUE, _enter(replace(HELD, wait=WaitMode.QUEUE, nonce="2"))],
    ),
    "there is room": (
        "and is_single(holder.mode, holder.limit)",
        "",
        [_enter(replace(KEPT, limit=2)), _enter(TWO_W)],
    ),
    "the lease is over": (
        "and holder.expires > now",
        "",
        [_enter(A), _enter(W), ("pass", 4 * SECOND), _enter(X)],
    ),
    "it is done": (
        "redis.call('EXISTS', DONE) == 0 and",
        "",
        [_enter(DONE), _leave(DONE, Outcome.DONE), _enter(B), _enter(X), _enter(QUEUED)],
    ),
    "it was lost": (
        "and redis.call('HEXISTS', LOST, task) == 0",
        "",
        [_enter(W), _leave(W, Outcome.ABANDONED), _enter(HELD), _enter(X), _enter(W)],
    ),
    "it waits": (
        "and redis.call('HEXISTS', ENTRIES, claim.task) == 0",
        "",
        [*QUEUE, _enter(replace(X, nonce="2"))],
    ),
    "somebody gives up": (
        "return not state.patient or state.patient + state.paused > instant",
        "return true",
        [_enter(HELD), _enter(replace(W, gives_up=SECOND)), ("pass", 2 * SECOND), _enter(X)],
    ),
    "it is another one's turn": (
        "grant.task == claim.task and grant.parked",
        "grant.parked",
        [*TURN, _enter(B)],
    ),
    "nobody was there": ("and grant.due > now", "", [*TURN, ("pass", 700 * SECOND), _enter(W)]),
    "it leaves room": (
        "and is_single(claim.mode, claim.limit)",
        "",
        [_enter(HELD), _enter(W), _enter(TWO_X), _enter(Y), _leave(HELD), _enter(TWO_W)],
    ),
}
HAND_ON: dict[str, tuple[str, str, Operations]] = {
    "somebody gives up": (
        "return not state.patient or state.patient + state.paused > instant",
        "return true",
        [_enter(HELD), _enter(replace(W, gives_up=SECOND)), ("pass", 2 * SECOND), _leave(HELD)],
    ),
    "somebody is woken again": (
        "or #state.grants ~= grants",
        "",
        [*AGAIN, _leave(LONG)],
    ),
    "others hold": (
        "#state.holders ~= holders or",
        "",
        [_enter(TWO_A), _enter(TWO_B), _enter(W), _enter(X), _leave(TWO_A)],
    ),
    "it is to run again": (
        "claim.plain and (outcome == 'done' or outcome == 'over')",
        "claim.plain",
        [_enter(Z), _enter(W), _leave(Z, Outcome.REPEAT)],
    ),
    "another task holds": (
        "holder.task == claim.task and holder.nonce == claim.nonce and holder.expires",
        "holder.nonce == claim.nonce and holder.expires",
        [*QUEUE, _leave(B)],
    ),
    "another delivery holds": (
        "and holder.nonce == claim.nonce and holder.expires",
        "and holder.expires",
        [*QUEUE, _leave(replace(HELD, nonce="2"))],
    ),
    "nobody was there": (
        "and holder.expires > now",
        "",
        [*QUEUE, ("pass", 700 * SECOND), _leave(HELD)],
    ),
    "it was done before": (
        "redis.call('EXISTS', DONE) == 0 and redis.call('HEXISTS', ENTRIES",
        "redis.call('HEXISTS', ENTRIES",
        [
            *[_enter(DONE), _leave(replace(DONE, nonce="2"), Outcome.DONE), _enter(W)],
            _leave(DONE),
        ],
    ),
    "its message is here": (
        "and redis.call('HEXISTS', ENTRIES, claim.task) == 0",
        "",
        [_enter(KEPT), _enter(W), _leave(QUEUED)],
    ),
    "it is done now": (
        "if remembers then mark_done(claim.done_ttl, now) end",
        "",
        [_enter(DONE), _enter(W), _leave(DONE, Outcome.DONE), _enter(DONE)],
    ),
    "the first has a place": (
        "if readable and entry.plain and not entry.expires then",
        "if readable then",
        [_enter(HELD), _enter(replace(Y, wait=WaitMode.PLACE)), _enter(W), _leave(HELD)],
    ),
    "all who read are let in": (
        "first and is_single(entry.mode, entry.limit)",
        "first",
        [_enter(HELD), *(_enter(replace(READER, task=task)) for task in "wx"), _leave(HELD)],
    ),
}


def _compare(server: RedisServer, ops: Operations) -> None:
    clock, prefix = Clock(), f"shortcut{next(_numbers)}"
    options = BackendOptions(prefix=prefix, clock=clock)
    with closing(RedisBackend.from_url(server.url, options)) as store:
        assert_alike(Twin(MemoryBackend(options)), Twin(store), clock, ops)


@pytest.mark.parametrize("case", FREE)
def test_a_key_that_is_not_free_is_left_to_the_rules(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    _caught_when_too_wide(redis_server, monkeypatch, "ENTER", *FREE[case])


@pytest.mark.parametrize("case", ALONE)
def test_who_is_not_alone_is_left_to_the_rules(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    _caught_when_too_wide(redis_server, monkeypatch, "LEAVE", *ALONE[case])


@pytest.mark.parametrize("case", BEHIND)
def test_who_waits_and_whose_turn_it_is_are_left_to_the_rules_unless_all_is_simple(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    _caught_when_too_wide(redis_server, monkeypatch, "ENTER", *BEHIND[case])


@pytest.mark.parametrize("case", HAND_ON)
def test_a_key_is_handed_on_by_the_rules_unless_all_is_simple(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    _caught_when_too_wide(redis_server, monkeypatch, "LEAVE", *HAND_ON[case])


def _caught_when_too_wide(
    server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    condition: str,
    wider: str,
    ops: Operations,
) -> None:
    """The machine and the store agree on *ops*, and no more without *condition*."""
    _compare(server, ops)
    text = getattr(redis_scripts, script).text
    assert condition in text
    mutant = Script.with_text(text.replace(condition, wider, 1))
    monkeypatch.setattr(redis_scripts, script, mutant)
    with pytest.raises(AssertionError):
        _compare(server, ops)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("wait", [WaitMode.NOT, WaitMode.PLACE, WaitMode.LOOK, WaitMode.QUEUE])
@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.OVER])
def test_they_are_taken_in_the_common_case(
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    wait: WaitMode,
    outcome: Outcome,
) -> None:
    mine = replace(DONE, mode=mode, wait=wait)
    for script in ("ENTER", "LEAVE"):
        mutant = _without_rules(getattr(redis_scripts, script))
        monkeypatch.setattr(redis_scripts, script, mutant)
    with store_on(redis_server) as store:
        for _ in range(2 if outcome is Outcome.OVER else 1):
            assert isinstance(store.backend.enter(mine, b"message").verdict, Run)
            store.backend.leave(mine, outcome)


@pytest.mark.parametrize("gives_up", [0, 86_400 * SECOND])
def test_they_are_taken_while_others_wait(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, gives_up: int
) -> None:
    w, x, y = (replace(claim, gives_up=gives_up) for claim in (W, X, Y))
    with store_on(redis_server) as store:
        for claim in (HELD, w):
            store.backend.enter(claim, b"message")
        for script in ("ENTER", "LEAVE"):
            mutant = _without_rules(getattr(redis_scripts, script))
            monkeypatch.setattr(redis_scripts, script, mutant)
        looks = replace(x, wait=WaitMode.LOOK)
        assert isinstance(store.backend.enter(looks, b"message").verdict, Busy)
        for claim in (x, y):
            assert store.backend.enter(claim, b"message").verdict == Park()
        for holder, following in pairwise([HELD, w, x]):
            (wake,) = store.backend.leave(holder, Outcome.DONE).wakes
            assert (wake.task, wake.message) == (following.task, b"message")
            assert isinstance(store.backend.enter(following).verdict, Run)
        # The last of them stays for ever, whatever had an end before.
        queue, entries = store.names(KEY)[1:3]
        assert {store.lying()[name] for name in (queue, entries)} == {-1}


def _without_rules(script: Script) -> Script:
    return Script.with_text(script.text[: script.text.index("-- How one lock key lies in Redis")])
