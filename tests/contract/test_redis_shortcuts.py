"""The ways around the rules are taken in the common case, with the rules taken away.

That they are taken nowhere else is shown field by field in ``test_shortcuts_by_field.py``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from celery_dlock.core.operations import Enter, Leave
from celery_dlock.core.state import Busy, Mode, Outcome, Park, Run, WaitMode
from celery_dlock.stores.redis.scripts import BY_OPERATION, Script
from celery_dlock.testing.contract.words import DAY, QUEUE, claim, running
from tests.contract.redis_store import store_on
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")


def take_the_rules_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Enter, Leave):
        text = BY_OPERATION[kind].text
        shortcuts = text[: text.index("-- How one lock key lies in Redis")]
        monkeypatch.setitem(BY_OPERATION, kind, Script.with_text(shortcuts))


@pytest.mark.parametrize("mode", Mode)
def test_they_are_taken_by_who_is_alone(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    take_the_rules_away(monkeypatch)
    for wait in (WaitMode.NOT, WaitMode.PLACE, WaitMode.LOOK, WaitMode.QUEUE):
        mine = claim("a", mode=mode, wait=wait)
        with store_on(redis_server) as store:
            for outcome in (Outcome.OVER, Outcome.OVER, Outcome.DONE):
                assert isinstance(store.backend.enter(mine, b"message").verdict, Run)
                store.backend.leave(mine, outcome)


def test_they_are_taken_by_who_is_refused(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_on(redis_server) as store:
        running(store.backend.enter(claim("a", ttl=60)))
        take_the_rules_away(monkeypatch)
        for wait in (WaitMode.NOT, WaitMode.LOOK, WaitMode.PLACE, WaitMode.PLACE):
            mine = claim(f"is told {wait}", wait=wait, patience=60)
            assert isinstance(store.backend.enter(mine, b"message").verdict, Busy)
        lying = [store.lying()[name] for name in store.names("key")[:3]]
        assert all(DAY < stays / 1000 < 2 * DAY for stays in lying), lying

        assert isinstance(store.backend.enter(claim("b", wait=QUEUE), b"message").verdict, Park)
        lying = [store.lying()[name] for name in store.names("key")[:3]]
        assert lying == [-1, -1, -1]  # as long as a message is there


@pytest.mark.parametrize("gives_up", [0, DAY])
def test_they_are_taken_while_others_wait(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, gives_up: float
) -> None:
    terms: dict[str, Any] = {"wait": QUEUE, "gives_up": gives_up}
    holder, w, x, y = claim("a", ttl=60), *(claim(task, **terms) for task in "wxy")
    with store_on(redis_server) as store:
        for mine in (holder, w):
            store.backend.enter(mine, b"message")
        take_the_rules_away(monkeypatch)
        looks = claim("x", wait=WaitMode.LOOK, gives_up=gives_up)
        assert isinstance(store.backend.enter(looks, b"message").verdict, Busy)
        for mine in (x, y):
            assert store.backend.enter(mine, b"message").verdict == Park()
        for leaves, following in pairwise([holder, w, x]):
            (wake,) = store.backend.leave(leaves, Outcome.DONE).wakes
            assert (wake.task, wake.message) == (following.task, b"message")
            assert isinstance(store.backend.enter(following).verdict, Run)
        # The last of them stays for ever, whatever had an end before.
        queue, entries = store.names("key")[1:3]
        assert {store.lying()[name] for name in (queue, entries)} == {-1}
