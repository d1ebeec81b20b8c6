"""The two ways around the rules: they are taken where they may be, and nowhere else."""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Claim, Mode, Outcome, Run, WaitMode
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
    "a message is left": ("claim.keep or ", "", [_enter(KEPT)]),
    "a turn is asked for": (
        " or claim.wait == 'enqueue'",
        "",
        [_enter(_claim("a", wait=WaitMode.ENQUEUE))],
    ),
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
        "outcome ~= 'done' and outcome ~= 'over' or",
        "",
        [_enter(QUEUED), _leave(QUEUED, Outcome.REPEAT)],
    ),
    "there is a successor": (
        "or successor ~= ''",
        "or false",
        [_enter(A), _leave(replace(A, successor="b"))],
    ),
    "others hold": ("#holders ~= 1 or", "", [_enter(TWO_A), _enter(TWO_B), _leave(TWO_A)]),
    "another one is expected": (
        "or #grants > 0",
        "",
        [_enter(TWO_A), _enter(TWO_B), _leave(replace(TWO_B, successor="c")), _leave(TWO_A)],
    ),
    "others wait": (
        "or queued",
        "",
        [_enter(A), _enter(_claim("b", wait=WaitMode.QUEUE)), _leave(A)],
    ),
    "another task holds": ("task == claim.task and", "", [_enter(A), _leave(B)]),
    "another delivery holds": (
        "nonce == claim.nonce and",
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


def _without_rules(script: Script) -> Script:
    return Script.with_text(script.text[: script.text.index("-- How one lock key lies in Redis")])
