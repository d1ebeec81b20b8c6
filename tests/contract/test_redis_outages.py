"""A Redis that dies, forgets its scripts, hangs, or answers nonsense."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import closing

import pytest
from redis.connection import Connection

from celery_dlock.core.state import Drop, Outcome, Park, Reason
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, LockBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.testing.contract.words import QUEUE, claim, running
from tests.contract.redis_store import store_on
from tests.services.garbage import answering
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

OPERATIONS: dict[str, Callable[[LockBackend], object]] = {
    "enter": lambda store: store.enter(claim("a", wait=QUEUE), b"message"),
    "leave": lambda store: store.leave(claim("a"), Outcome.DONE),
    "renew": lambda store: store.renew([claim("a")]),
    "reap": lambda store: store.reap("key"),
    "peek": lambda store: store.peek("key"),
}


def test_a_killed_server_is_unavailable_until_it_is_back(own_redis_server: RedisServer) -> None:
    with store_on(own_redis_server) as store:
        running(store.backend.enter(claim("a")))  # and its connection stays open, idle

        own_redis_server.kill()
        for operation in OPERATIONS.values():
            with pytest.raises(BackendUnavailable):
                operation(store.backend)
        own_redis_server.start()

        # Nothing was saved, its scripts neither.
        for operation in OPERATIONS.values():
            operation(store.backend)


def test_a_server_that_forgot_its_scripts_gets_them_again(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        token = running(store.backend.enter(claim("a"))).token
        for operation in OPERATIONS.values():
            store.client.script_flush()
            operation(store.backend)
        store.client.script_flush()
        assert running(store.backend.enter(claim("b"))).token > token


def test_what_a_hanging_server_was_told_is_found_again(own_redis_server: RedisServer) -> None:
    with store_on(own_redis_server, socket_timeout=0.2) as store:
        running(store.backend.enter(claim("first")))

        own_redis_server.pause()
        for late in (
            lambda: store.backend.leave(claim("first"), Outcome.DONE),
            lambda: store.backend.enter(claim("a")),
            lambda: store.backend.enter(claim("b", wait=QUEUE), b"message"),
        ):
            with pytest.raises(BackendUnavailable):
                late()
        own_redis_server.resume()

        # The requests lay in the sockets and were served after all, in any order.
        a, b = store.backend.enter(claim("a")), store.backend.enter(claim("b", wait=QUEUE), b"")
        state = store.backend.peek("key")
        holders = {holder.task for holder in state.holders}
        assert len(holders | {grant.task for grant in state.grants}) == 1
        if holders == {"a"}:
            assert running(a).token == state.holders[0].token
            assert b.verdict in (Park(), Drop(Reason.WAITING))


def test_an_answer_that_is_late_is_not_taken_for_that_of_the_next_command(
    own_redis_server: RedisServer,
) -> None:
    with store_on(own_redis_server, socket_timeout=0.2) as store:
        store.backend.peek("key")
        own_redis_server.pause()
        with pytest.raises(BackendUnavailable):
            store.backend.enter(claim("late", key="late"))
        threading.Timer(0.1, own_redis_server.resume).start()

        token = running(store.backend.enter(claim("next", key="next"))).token

        assert [holder.token for holder in store.backend.peek("next").holders] == [token]


def test_who_is_interrupted_before_the_answer_does_not_leave_it_to_the_next_one(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TimeLimit(BaseException):
        pass

    def strike(*args: object, **options: object) -> None:
        raise TimeLimit

    with store_on(redis_server) as store:
        store.backend.peek("key")
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "read_response", strike)
            with pytest.raises(TimeLimit):
                store.backend.enter(claim("late", key="late"))

        token = running(store.backend.enter(claim("next", key="next"))).token

        assert [holder.token for holder in store.backend.peek("next").holders] == [token]


def test_a_connection_that_was_closed_meanwhile_is_opened_again(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        token = running(store.backend.enter(claim("a"))).token
        store.client.client_kill_filter(_type="normal", skipme=True)
        assert running(store.backend.enter(claim("a"))).token == token


def _take_and_park(store: LockBackend) -> None:
    """Between them, these touch all that a key is made of."""
    store.enter(claim("a"))
    store.enter(claim("b", wait=QUEUE), b"message")


@pytest.mark.parametrize("theirs", ["a string", "a list"])
def test_foreign_data_under_our_names_is_left_alone(redis_server: RedisServer, theirs: str) -> None:
    for part in ("state", "queue", "entries", "lost", "token", "done"):
        with store_on(redis_server) as store:
            name = next(n for n in store.names("key", "b") if part in n.split(":"))
            if theirs == "a string":
                store.client.set(name, "theirs")
            else:
                store.client.rpush(name, "theirs")
            before = store.client.dump(name)

            with pytest.raises(BackendUnavailable, match="database 0"):
                _take_and_park(store.backend)

            assert store.client.dump(name) == before


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"+OK\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b":7\r\n",
        b"*2\r\n+what\r\n+ever\r\n",
        b":abc\r\n",
        b"$9999999999999\r\nx",
        b"\xff\xfe\r\n",
        b"-ERR unknown command 'EVALSHA'\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"",
    ],
)
def test_a_server_that_answers_nonsense_is_unavailable(reply: bytes) -> None:
    with answering(reply) as port:
        options = BackendOptions(driver={"socket_timeout": 0.2})
        for operation in OPERATIONS.values():
            with (
                closing(RedisBackend.from_url(f"redis://127.0.0.1:{port}", options)) as store,
                pytest.raises(BackendUnavailable, match=f"127.0.0.1:{port}"),
            ):
                operation(store)


QUOTING = b"-ERR unknown command 'AUTH', with args beginning with: 'hunter2'\r\n"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@{0}",
        "redis+cluster://:hunter2@{0}",
        "redis+sentinel://:hunter3@{0}/shop",
        "redlock://:hunter2@{0},{1},{2}",
    ],
)
def test_a_password_that_the_server_quotes_is_not_repeated(url: str) -> None:
    driver = {"sentinel_kwargs": {"password": "hunter2"}} if "sentinel" in url else {}
    with answering(QUOTING) as one, answering(QUOTING) as two, answering(QUOTING) as three:
        servers = [f"127.0.0.1:{port}" for port in (one, two, three)]
        with (
            closing(open_backend(url.format(*servers), BackendOptions(driver=driver))) as store,
            pytest.raises(BackendUnavailable) as caught,
        ):
            store.enter(claim("a"))

    assert "hunter" not in "".join(traceback.format_exception(caught.value))
    assert servers[0] in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:hunter2@h",
        "redis+sentinel://:hunter2@h/shop/two",
        "redis+sentinel://:hunter2@/shop",
        "redis+sentinel://:hunter2@h,/shop",
        "redis+sentinel://:hunter2@h:port/shop",
        "redis+sentinel://:hunter2@[::1/shop",
        "redis+sentinel://:hunter2@h/shop?socket_timeout=soon",
        "redis+sentinel://:hunter2@h/shop?no_such_option=1",
        "redis+cluster://:hunter2@h/1",
        "redis+cluster://:hunter2@",
        "redis+cluster://:hunter2@h:port",
        "redis+cluster://:hunter2@h?socket_timeout=soon",
        "redis+cluster://:hunter2@h?no_such_option=1",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_and_its_password_not_told(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_backend(url, BackendOptions())
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_nobody_listening_is_unavailable() -> None:
    with answering(b"") as port:
        pass
    store = RedisBackend.from_url(f"redis://127.0.0.1:{port}/3", BackendOptions())
    with pytest.raises(BackendUnavailable, match=rf"127.0.0.1:{port}, database 3"):
        store.peek("key")
