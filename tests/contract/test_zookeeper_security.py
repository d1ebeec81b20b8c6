"""Who the server is, by TLS, and who we are, by SASL: on servers that speak it."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kazoo.security import make_digest_acl

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Kind, Name
from celery_dlock.stores.zookeeper import client
from tests.contract.zookeeper_store import HELD, SECOND, hold, plain_client, rows_at
from tests.services.certificates import HERE, Authority
from tests.services.ports import free_ports
from tests.services.zookeeper import ZooKeeperServer

pytestmark = [
    pytest.mark.server("zookeeper"),
    # kazoo leaves sockets to the garbage collector whose handshake has failed.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning",
        "ignore:unclosed <ssl.SSLSocket:ResourceWarning",
    ),
]


def serving(folder: Path, authority: Authority, host: str) -> tuple[ZooKeeperServer, str]:
    """A server with a certificate for *host*, and the address at which it speaks TLS."""
    (port,) = free_ports(1)
    signed, store = authority.signs("server", host), folder / "store.pem"
    store.write_bytes(signed.key.read_bytes() + signed.certificate.read_bytes())
    options: dict[str, Any] = {
        "secureClientPort": port,
        "secureClientPortAddress": HERE,
        "ssl.clientAuth": "none",
        "ssl.keyStore.location": store,
        "ssl.trustStore.location": authority.file,
    }
    server = ZooKeeperServer(**options)
    server.properties = {
        "zookeeper.serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory"
    }
    return server, f"zookeeper://{HERE}:{port}"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A busy server takes long for a handshake. Nothing is left to other tests."""
    monkeypatch.setattr(client, "ANSWER_TIMEOUT", 30.0)
    yield
    gc.collect()


@contextmanager
def refused(why: str | None = None) -> Iterator[None]:
    """Do not wait long for a connection that is not to be had."""
    with (
        mock.patch.object(client, "ANSWER_TIMEOUT", 2.0),
        pytest.raises(BackendUnavailable, match=why),
    ):
        yield


def test_it_speaks_tls_and_checks_who_answers(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server, url = serving(tmp_path, authority, HERE)
    with server:
        with rows_at(url, use_ssl=True, ca=str(authority.file)) as rows:
            hold(rows)
            assert rows.alive([HELD], SECOND) == [True]
        wrong: tuple[dict[str, Any], ...] = ({"ca": str(stranger.file)}, {})
        for driver in wrong:
            with (
                rows_at(url, use_ssl=True, **driver) as rows,
                refused("CERTIFICATE_VERIFY_FAILED"),
            ):
                rows.read([HELD])


def test_a_certificate_for_another_host_is_refused_unless_names_are_not_checked(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    server, url = serving(tmp_path, authority, "elsewhere.example")
    tls: dict[str, Any] = {"use_ssl": True, "ca": str(authority.file)}
    with server:
        with rows_at(url, **tls) as rows, refused():
            rows.read([HELD])
        with rows_at(url, check_hostname=False, **tls) as rows:
            assert rows.read([HELD]) == [None]


def test_a_user_needs_to_read_and_create_in_the_folder(zookeeper_server: ZooKeeperServer) -> None:
    folder = f"/shop-{uuid.uuid4().hex}"
    allowed = make_digest_acl("locks", "secret", read=True, create=True)
    with plain_client(zookeeper_server.address) as admin:
        admin.create(folder, acl=[allowed])
    url = f"zookeeper://locks:secret@{zookeeper_server.address}{folder}"

    with rows_at(url, prefix="shop") as rows:
        hold(rows)
        assert rows.alive([HELD], SECOND) == [True]
        rows.drop(HELD)
        assert rows.read([HELD]) == [None]
    for others in (url.replace("locks:secret@", ""), url.replace("secret", "wrong")):
        with rows_at(others, prefix="shop") as rows, pytest.raises(BackendUnavailable):
            rows.read([Name(Kind.VERSION_ROW, HELD.key)])


JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_shop="secret";
};
"""


def test_it_says_who_it_is_by_sasl(tmp_path: Path) -> None:
    (tmp_path / "jaas.conf").write_text(JAAS)
    server = ZooKeeperServer(
        **{"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    )
    server.properties = {"java.security.auth.login.config": str(tmp_path / "jaas.conf")}
    sasl = {"mechanism": "DIGEST-MD5", "username": "shop", "password": "secret"}
    with server:
        with rows_at(server.url, prefix="shop", sasl_options=sasl) as rows:
            hold(rows)
            assert rows.alive([HELD], SECOND) == [True]
            with (
                rows_at(server.url, prefix="shop") as others,
                refused("NoAuth"),
            ):
                others.read([HELD])
        wrong = {**sasl, "password": "wrong"}
        with rows_at(server.url, prefix="shop", sasl_options=wrong) as rows:
            for _ in range(2):
                with refused():
                    rows.read([HELD])
