"""What lies between a process and its Redis: slow or one-way wires, passwords, certificates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import BackendUnavailable, Lease
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Outcome
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions
from tests.contract.redis_store import let_in
from tests.services.certificates import Authority, Signed
from tests.services.process import Process, renewal
from tests.services.proxy import Proxy, proxy_to
from tests.services.redis import RedisServer, speaking_tls
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow, pytest.mark.once]

#: Seconds.
TTL = 1.5


def process_at(url: str, **driver: Any) -> Process:
    return Process(open_backend(url, BackendOptions("dlock", driver=driver)))


@pytest.fixture
def proxy(own_redis_server: RedisServer) -> Iterator[Proxy]:
    with proxy_to(own_redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy) -> Iterator[Process]:
    """A process that reaches the server through the proxy."""
    url = f"redis://127.0.0.1:{proxy.port}/0"
    with closing(process_at(url, socket_timeout=0.4)) as process:
        yield process


@pytest.fixture
def beside(own_redis_server: RedisServer) -> Iterator[Process]:
    """One that reaches it directly."""
    with closing(process_at(own_redis_server.url)) as process:
        yield process


def test_who_is_heard_and_hears_nothing_is_told_in_time_and_nobody_else_gets_its_key(
    proxy: Proxy, behind: Process, beside: Process
) -> None:
    held = behind.take("held", "key", TTL)

    # When each renewal arrives, and no answer comes back
    proxy.is_mute = True

    until("it is told", lambda: "key" in behind.told, timeout=TTL + 1)
    assert held.lost
    # Then the store kept the key for it until then: nobody else has got in
    (holder,) = beside.store.peek("key").holders
    assert holder.task == "held"
    told = beside.store.now() - (time.monotonic() - behind.told["key"]) * SECOND
    assert holder.expires > told
    # And when it is heard again it gives the key back, to the next one
    proxy.is_mute = False
    behind.manager.release(held, Outcome.OVER)
    assert isinstance(beside.ask("next", "key", TTL), Lease)


def test_a_lease_is_kept_over_a_slow_wire_and_counts_from_the_question(
    proxy: Proxy, behind: Process, beside: Process
) -> None:
    proxy.delay = 0.2
    held = behind.take("held", "key", 2 * TTL)
    assert held.remaining() < 2 * TTL - proxy.delay
    for _ in range(2):
        until("it is renewed", renewal(held))
    assert not isinstance(beside.ask("other", "key", TTL), Lease)


def test_a_password_is_changed_while_processes_run(own_redis_server: RedisServer) -> None:
    let_in(own_redis_server)
    with own_redis_server.client() as admin, ExitStack() as running:

        def process_with(password: str) -> Process:
            url = own_redis_server.url.replace("://", f"://locks:{password}@")
            return running.enter_context(closing(process_at(url)))

        def everybody_connects_anew() -> None:
            admin.client_kill_filter(_type="normal", skipme=True)

        old = process_with("secret")
        held = old.take("held", "key", TTL)
        # While both passwords are good, who has either goes on, over new connections, too
        admin.execute_command("ACL", "SETUSER", "locks", ">renewed")
        new = process_with("renewed")
        everybody_connects_anew()
        assert isinstance(new.ask("new", "another", TTL), Lease)
        assert isinstance(old.ask("old", "a second", TTL), Lease)
        until("it is renewed", renewal(held))
        # When the old one is not any more, who has it goes on until it has to connect anew
        admin.execute_command("ACL", "SETUSER", "locks", "<secret")
        assert isinstance(old.ask("old", "a third", TTL), Lease)
        everybody_connects_anew()
        with pytest.raises(BackendUnavailable, match="invalid username-password") as refused:
            old.ask("refused", "a fourth", TTL)
        assert "secret" not in str(refused.value)
        # And its holders are told in time
        until("it is told", lambda: "key" in old.told, timeout=TTL + 1)
        assert isinstance(new.ask("new", "a fourth", TTL), Lease)


def test_a_certificate_that_has_expired_refuses_new_connections_until_there_is_another(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    good, expired = authority.signs("server"), authority.signs("expired", days=-0.5)
    with speaking_tls(authority, good) as (server, port), server.client() as admin:

        def shows(signed: Signed) -> None:
            files = ("tls-cert-file", signed.certificate, "tls-key-file", signed.key)
            admin.execute_command("CONFIG", "SET", *map(str, files))

        url = f"rediss://127.0.0.1:{port}/0"
        with closing(process_at(url, ssl_ca_certs=str(authority.file))) as process:
            held = process.take("held", "key", TTL)
            until("it is renewed, over a second connection", renewal(held))
            shows(expired)
            until("it is renewed", renewal(held))
            admin.client_kill_filter(_type="normal", skipme=True)
            with pytest.raises(BackendUnavailable, match="certificate has expired"):
                process.ask("refused", "another", TTL)
            shows(good)
            assert isinstance(process.ask("after", "another", TTL), Lease)
