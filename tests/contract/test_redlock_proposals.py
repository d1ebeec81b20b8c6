"""What the queue proposes may be refused: whoever asks again hears what the majority gave."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_dlock.core.state import Claim, Mode, Outcome, Same
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import ENQUEUE, claim, running
from tests.contract.redlock_store import StoreOnNodes, store_on_nodes, warm
from tests.services.redis_nodes import RedisNodes

pytestmark = pytest.mark.server("redis")


@pytest.fixture
def store(own_redis_nodes: RedisNodes) -> Iterator[StoreOnNodes]:
    with store_on_nodes(own_redis_nodes, ManualClock()) as store:
        warm(store.backend)
        yield store


@pytest.mark.parametrize(
    "again",
    [claim("a", limit=3, wait=ENQUEUE), claim("a", limit=3), claim("a", mode=Mode.SHARED)],
    ids=["publishes", "asks", "reads"],
)
def test_whoever_asks_again_hears_the_token_that_the_majority_gave(
    store: StoreOnNodes, again: Claim
) -> None:
    # Given a queue that forgot how far it was: what it proposes is refused
    before = running(store.backend.enter(claim("before", limit=3)))
    store.backend.leave(claim("before", limit=3), Outcome.OVER)
    with store.nodes[0].client() as client:
        client.delete(*client.scan_iter(f"{store.prefix}*:token"))

    run = running(store.backend.enter(claim("a", limit=3)))

    assert run.token > before.token
    assert running(store.backend.enter(again, b"message")) == run
    assert [h.token for h in store.backend._machine.peek("key").holders] == [run.token]
    verdict = store.backend.enter(claim("a", "another", limit=3)).verdict
    assert isinstance(verdict, Same)
    assert verdict.holder.token == run.token


@pytest.mark.parametrize("mode", Mode)
def test_whoever_asks_again_while_the_queue_is_away_hears_its_token_too(
    store: StoreOnNodes, mode: Mode
) -> None:
    run = running(store.backend.enter(claim("a")))
    store.nodes[0].kill()

    assert running(store.backend.enter(claim("a", mode=mode))) == run
