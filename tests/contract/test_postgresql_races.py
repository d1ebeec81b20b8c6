"""What goes wrong on a PostgreSQL server only at one instant, and is made to happen at that one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from celery_dlock.core.state import (
    Busy,
    Drop,
    EnterVerdict,
    Left,
    Outcome,
    Park,
    Reason,
    Renewed,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, Reply
from celery_dlock.stores.consensus import commit
from celery_dlock.stores.postgresql.connection import Statement
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.contract.postgresql_store import counted, stopped, stopping, until_stopped
from tests.services.pgbouncer import POOL, PgBouncer
from tests.services.postgresql import PostgresqlServer
from tests.services.proxy import Proxy, proxy_to
from tests.services.until import until

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

#: What a role or a database may have as defaults.
DEFAULTS = {
    "as installed": "",
    "serializable": "-c default_transaction_isolation=serializable",
    "read only": "-c default_transaction_read_only=on",
    "asynchronous": "-c synchronous_commit=off",
    "in a hurry": "-c idle_in_transaction_session_timeout=1",
}


@pytest.fixture
def server(postgresql_server: PostgresqlServer) -> PostgresqlServer:
    return postgresql_server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def opened(server: PostgresqlServer) -> Iterator[Callable[..., PostgresqlBackend]]:
    prefix = f"races-{uuid.uuid4().hex}"
    with ExitStack() as stack:

        def open_store(url: str = server.url, **driver: Any) -> PostgresqlBackend:
            options = BackendOptions(prefix=prefix, driver=driver)
            return stack.enter_context(closing(PostgresqlBackend.from_url(url, options)))

        yield open_store


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "COMMIT_TIMEOUT", 0.1)


def entered(backend: PostgresqlBackend, task: str, **others: Any) -> Reply[EnterVerdict]:
    return backend.enter(claim(task, wait=QUEUE, **others), b"message")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("way", ["free", "its turn", "beside another"])
def test_nobody_overtakes_a_grant_that_has_stopped_between_its_token_and_its_row(
    way: str,
    server: PostgresqlServer,
    opened: Callable[..., PostgresqlBackend],
    pool: ThreadPoolExecutor,
) -> None:
    one, other = opened(), opened()
    limit = 2 if way == "beside another" else 1
    if way != "free":
        running(other.enter(claim("before", limit=limit)))
    if way == "its turn":
        park(one, "slow")
        assert woken(other.leave(claim("before"), Outcome.DONE)) == ["slow"]
    one.now(), other.now()

    with stopping(server, "holder", "slow") as go_on:
        slow = pool.submit(entered, one, "slow", limit=limit)
        until_stopped(server)
        # Whoever would draw a token now, or delete the last row of the key, is held off
        if way == "its turn":
            assert isinstance(other.enter(claim("fast")).verdict, Busy)
        else:
            with pytest.raises(BackendUnavailable, match="keep changing"):
                other.enter(claim("fast", limit=limit))
        if way == "beside another":
            with pytest.raises(BackendUnavailable, match="keep changing"):
                other.leave(claim("before", limit=limit), Outcome.OVER)
        go_on()
        token = running(slow.result()).token

    if way == "beside another":
        assert other.leave(claim("before", limit=limit), Outcome.OVER).verdict == Left(False)
    assert isinstance(other.leave(claim("slow", limit=limit), Outcome.DONE).verdict, Left)
    assert running(other.enter(claim("fast", limit=limit))).token > token


@pytest.mark.parametrize("defaults", DEFAULTS)
@pytest.mark.parametrize("waits", [False, True], ids=["alone", "with others behind it"])
def test_a_duplicate_that_asks_while_its_task_is_being_released_does_not_run(
    defaults: str,
    waits: bool,
    server: PostgresqlServer,
    opened: Callable[..., PostgresqlBackend],
    pool: ThreadPoolExecutor,
) -> None:
    one, other = (opened(options=DEFAULTS[defaults]) for _ in range(2))
    running(one.enter(claim("slow")))
    if waits:
        park(other, "b")
    other.now()

    with stopping(server, "past", "slow") as go_on:
        release = pool.submit(one.leave, claim("slow"), Outcome.DONE)
        until_stopped(server)
        with counted() as flights:
            duplicate = pool.submit(entered, other, "slow", nonce="duplicate")
            until("it has asked", lambda: len(flights) > 1)
        go_on()

    assert release.result().verdict == Left(carried=True)
    assert duplicate.result().verdict == Drop(Reason.DONE)


@pytest.mark.parametrize("defaults", DEFAULTS)
def test_a_flight_goes_by_its_own_isolation_and_waits_for_the_disk_whatever_the_role_has(
    defaults: str, opened: Callable[..., PostgresqlBackend]
) -> None:
    backend = opened(options=DEFAULTS[defaults])
    running(backend.enter(claim("a", limit=2)))
    with counted() as flights:
        running(backend.enter(claim("b", limit=2)))
    names = ("transaction_isolation", "transaction_read_only", "synchronous_commit")
    settings = ", ".join(f"current_setting('{name}')" for name in names)
    asked = Statement(f"SELECT {settings}".encode()), Statement(b"ROLLBACK")

    answers = backend._connections().fly([*flights.sent[-1][:2], *asked])

    assert answers[-2][0] == [("read committed", "off", "on")]


@pytest.mark.parametrize("defaults", DEFAULTS)
def test_a_free_key_is_taken_by_one_statement_only_in_the_isolation_that_it_needs(
    defaults: str, opened: Callable[..., PostgresqlBackend]
) -> None:
    backend = opened(options=DEFAULTS[defaults])
    backend.now()
    with counted() as flights:
        token = running(backend.enter(claim("a"))).token
        backend.leave(claim("a"), Outcome.DONE)

    assert len(flights) == (6 if defaults in ("serializable", "read only") else 2)
    assert running(backend.enter(claim("b"))).token > token


@pytest.mark.usefixtures("impatient")
def test_whoever_asks_for_a_hot_key_waits_outside_the_server(
    server: PostgresqlServer,
    opened: Callable[..., PostgresqlBackend],
    pool: ThreadPoolExecutor,
) -> None:
    stores = [opened() for _ in range(5)]
    for number, store in enumerate(stores):
        running(store.enter(claim("a", key=f"own {number}")))

    with stopping(server, "holder", "slow") as go_on:
        slow = pool.submit(entered, stores[0], "slow")
        until_stopped(server)
        others = [pool.submit(entered, store, "b") for store in stores[1:]]
        while not all(other.done() for other in others):
            assert stopped(server) == 1
        claims = [claim("a", key=f"own {number}") for number in range(len(stores))]
        assert all(isinstance(verdict, Renewed) for verdict in stores[0].renew(claims))
        go_on()

    running(slow.result())
    for other in others:
        assert isinstance(other.exception(), BackendUnavailable)


@pytest.mark.server("pgbouncer")
def test_behind_a_pool_of_four_a_hot_key_holds_up_no_other_one(
    server: PostgresqlServer,
    pgbouncer: PgBouncer,
    opened: Callable[..., PostgresqlBackend],
    pool: ThreadPoolExecutor,
) -> None:
    one, other, *askers = (opened(pgbouncer.url) for _ in range(POOL + 4))
    for store in (one, other, *askers):
        store.now()

    with stopping(server, "holder", "slow") as go_on:
        slow = pool.submit(entered, one, "slow")
        until_stopped(server)
        with counted() as flights:
            waiting = [pool.submit(entered, asker, f"{n}") for n, asker in enumerate(askers)]
            until("all have asked again", lambda: len(flights) > 4 * len(askers))
        running(other.enter(claim("a", key="another")))
        assert isinstance(other.leave(claim("a", key="another"), Outcome.DONE).verdict, Left)
        assert not any(future.done() for future in waiting)
        go_on()

    running(slow.result())
    assert all(isinstance(future.result().verdict, Park) for future in waiting)


@pytest.fixture
def proxy(server: PostgresqlServer) -> Iterator[Proxy]:
    with proxy_to(server.port) as proxy:
        yield proxy


def is_write(request: bytes) -> bool:
    return any(word in request for word in (b"READ WRITE", b"dlock.take", b"dlock.release"))


def test_an_operation_whose_answer_is_lost_in_the_commit_is_answered_as_the_first_time(
    server: PostgresqlServer, proxy: Proxy, opened: Callable[..., PostgresqlBackend]
) -> None:
    backend = opened(server.url.replace(str(server.port), str(proxy.port)))

    def lost(ask: Callable[[], Any]) -> Any:
        backend.now()
        lost_before = len(proxy.lost)
        proxy.lose_replies(1, is_write)
        answer = ask()
        assert len(proxy.lost) == lost_before + 1
        return answer

    token = running(lost(lambda: backend.enter(claim("a")))).token
    assert [holder.token for holder in backend.peek("key").holders] == [token]
    assert lost(lambda: backend.renew([claim("a")])) == [
        Renewed(backend.peek("key").holders[0].expires)
    ]
    assert lost(lambda: backend.leave(claim("a"), Outcome.DONE)).verdict == Left(carried=True)
    assert backend.enter(claim("a", "2")).verdict == Drop(Reason.DONE)

    running(backend.enter(claim("b")))
    assert isinstance(backend.enter(claim("c")).verdict, Busy)  # the key is known to be used
    assert lost(lambda: entered(backend, "c")).verdict == Drop(Reason.WAITING)  # it waits
    assert [entry.task for entry in backend.peek("key").waiting] == ["c"]
    reply = lost(lambda: backend.leave(claim("b"), Outcome.DONE))
    assert reply.verdict == Left(carried=True)
    assert [(wake.task, wake.message) for wake in reply.wakes] == [("c", b"message")]
    turn = running(lost(lambda: entered(backend, "c"))).token
    assert [holder.token for holder in backend.peek("key").holders] == [turn]
    assert turn > token

    assert lost(lambda: backend.note("key", turn, {"name": b"text"}))
    assert backend.notes("key") == {"name": b"text"}
    assert lost(lambda: backend.swap("name", None, b"one", 10_000_000)) == b"one"
    assert lost(lambda: backend.swap("name", b"one", None, 0)) is None
    assert isinstance(backend.enter(claim("d")).verdict, Busy)


def test_a_sweep_passes_by_a_key_that_somebody_else_is_at(
    server: PostgresqlServer,
    opened: Callable[..., PostgresqlBackend],
    pool: ThreadPoolExecutor,
) -> None:
    one, other = opened(), opened()
    for key in ("slow key", "key"):
        running(one.enter(claim("a", key=key, limit=2)))
        running(one.enter(claim("c", key=key, limit=2)))
        park(one, "b", "slow", key=key, limit=2)
    one.leave(claim("a", key="slow key", limit=2), Outcome.DONE)
    one.leave(claim("c", key="slow key", limit=2), Outcome.DONE)
    server.query(f"UPDATE dlock.state SET due = 0 WHERE prefix = '{one._prefix}'")
    overdue = f"SELECT key FROM dlock.state WHERE due = 0 AND prefix = '{one._prefix}'"

    with stopping(server, "holder", "slow") as go_on:
        slow = pool.submit(entered, one, "slow", key="slow key", limit=2)
        until_stopped(server)
        assert other.sweep().next_in == 0
        assert server.query(overdue) == "slow key"
        go_on()

    running(slow.result())
    other.sweep()
    assert server.query(overdue) == ""
