"""What comes between the check of data in Redis and its write: others, and lost replies."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_dlock.errors import StaleFencingToken
from celery_dlock.fencing import redis as fence
from tests.fencing.redis_orders import Connect, lease, ours, paid, paying
from tests.services.proxy import proxy_to
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")


class TestInBetween:
    def test_a_newer_holder_that_comes_between_check_and_write_wins(
        self, connect: Connect, order: str
    ) -> None:
        mine, theirs = connect(), connect()

        def pay(pipe: Any) -> None:
            paying(order)(pipe)
            fence.transaction(theirs, paying(order, 100), lease(order, 2))

        with pytest.raises(StaleFencingToken):
            fence.transaction(mine, pay, lease(order, 1))
        assert paid(mine, order) == 100

    def test_an_older_holders_write_is_read_again(self, connect: Connect, order: str) -> None:
        mine, theirs = connect(), connect()
        older = iter([lease(order, 1)])

        def pay(pipe: Any) -> None:
            paying(order)(pipe)
            for late in older:
                fence.transaction(theirs, paying(order, 100), late)

        assert fence.transaction(mine, pay, lease(order, 2))
        assert paid(mine, order) == 101

    def test_it_gives_up_when_somebody_comes_between_again_and_again(
        self, connect: Connect, order: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine, theirs = connect(), connect()
        monkeypatch.setattr(fence, "ATTEMPTS", 3)
        tries: list[int] = []

        def pay(pipe: Any) -> None:
            tries.append(1)
            pipe.watch("somebody else's")
            theirs.set("somebody else's", "x", ex=600)
            paying(order)(pipe)

        with pytest.raises(redis.WatchError, match="3 times"):
            fence.transaction(mine, pay, lease(order))
        assert (len(tries), paid(mine, order), ours(mine, order)) == (3, 0, [])

    @pytest.mark.parametrize("once", [None, "event"])
    def test_a_reply_that_is_lost_does_not_write_twice(
        self, redis_server: RedisServer, connect: Connect, order: str, once: str | None
    ) -> None:
        with proxy_to(redis_server.port) as proxy:
            client = connect(port=proxy.port)
            proxy.lose_replies(1, lambda request: b"EXEC" in request)

            assert fence.transaction(client, paying(order), lease(order), once=once)

            assert len(proxy.lost) == 1
        assert paid(connect(), order) == 1

    def test_when_the_server_has_gone_the_error_is_that_of_the_driver(
        self, redis_server: RedisServer, connect: Connect, order: str
    ) -> None:
        with proxy_to(redis_server.port) as proxy:
            client = connect(port=proxy.port, retry=Retry(NoBackoff(), 0))
            client.ping()
        with pytest.raises(redis.ConnectionError):
            fence.transaction(client, paying(order), lease(order))
