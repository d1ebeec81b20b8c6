"""Connections to nodes: interrupted, answered with nonsense, shared by threads."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from celery_dlock.core.state import Left, Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing.contract.words import at_once, claim, running
from tests.contract.redlock_store import StoreOnNodes, clock, store, store_on_nodes, warm
from tests.services.garbage import answering
from tests.services.redis_nodes import RedisNodes

__all__ = ("clock", "store")  # fixtures

pytestmark = pytest.mark.server("redis")


class Interrupted(BaseException):
    """As a time limit is: it strikes anywhere."""


def interrupt(act: Callable[[], object], seconds: float) -> None:
    """Do *act*, and let a signal strike in the middle of it, if it takes for so long."""
    acting = True

    def strike(*_: object) -> None:
        if acting:  # it may come just as the act is over
            raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    gc.disable()  # what it calls back swallows what is raised there
    try:
        with suppress(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            act()
            acting = False
    finally:
        acting = False
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_interrupted_answer_is_not_taken_for_the_next_one(store: StoreOnNodes) -> None:
    dice = random.Random(1)
    for number in range(150):
        first = claim("interrupted", key=f"first {number}")
        interrupt(partial(store.backend.enter, first), dice.uniform(0.0001, 0.003))

        mine = claim("a", key=f"key {number}")
        token = running(store.backend.enter(mine)).token
        (holder,) = store.backend.peek(mine.key).holders
        assert (holder.task, holder.token) == ("a", token)
        assert isinstance(store.backend.leave(mine, Outcome.OVER).verdict, Left)


def test_a_server_that_forgot_its_scripts_gets_them_again(store: StoreOnNodes) -> None:
    for number in range(3):
        for node in store.nodes:
            with node.client() as client:
                client.script_flush()
        mine = claim("a", key=f"key {number}")
        running(store.backend.enter(mine))
        store.backend.renew([mine])
        assert isinstance(store.backend.leave(mine, Outcome.OVER).verdict, Left)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"+OK\r\n",
        b"$9999999999999\r\nx",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"",
    ],
)
def test_a_minority_that_answers_nonsense_is_not_missed_and_a_majority_is_unavailable(
    own_redis_nodes: RedisNodes, reply: bytes
) -> None:
    first, second, third = (node.port for node in own_redis_nodes[:3])
    with store_on_nodes(own_redis_nodes, ports=[first, second, third]) as store:
        warm(store.backend)
        with answering(reply) as port, answering(reply) as other:
            few, many = store.another([first, second, port]), store.another([first, port, other])
            for number in range(3):
                running(few.enter(claim("a", key=f"key {number}")))
            with pytest.raises(BackendUnavailable, match="majority"):
                many.enter(claim("b"))


def test_threads_that_share_a_store_have_connections_of_their_own(store: StoreOnNodes) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            mine = claim(f"{number}", key=f"{number} {turn}")
            running(store.backend.enter(mine))
            store.backend.leave(mine, Outcome.OVER)

    at_once(8, work)

    for node in store.nodes:
        assert node.info("clients")["connected_clients"] <= 8 + 2 + 8
