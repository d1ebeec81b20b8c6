"""Who the server is, by TLS, and who we are, by a user that may do no more than it has to."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_dlock.core.state import Left, Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.testing.contract.words import claim, running
from tests.contract.redis_store import let_in
from tests.services.certificates import Authority
from tests.services.redis import RedisServer, speaking_tls
from tests.services.redis_cluster import tell

pytestmark = pytest.mark.server("redis")


class Rotation(redis.CredentialProvider):
    """The user ``shop`` of *servers*, whose password changes, and ends its connections."""

    def __init__(self, servers: Sequence[RedisServer]) -> None:
        self._servers = servers
        self.change()

    def get_credentials(self) -> tuple[str, str]:
        return "shop", self._password

    def change(self) -> None:
        self._password = uuid.uuid4().hex
        may = ("~*", "&*", "+@all")
        for server in self._servers:
            tell(server, "ACL", "SETUSER", "shop", "on", "resetpass", f">{self._password}", *may)
            tell(server, "CLIENT", "KILL", "USER", "shop")


@pytest.mark.parametrize("kind", ["server", "sentinel", "cluster", "nodes"])
def test_a_provider_of_credentials_is_asked_at_each_connection(
    kind: str, request: pytest.FixtureRequest
) -> None:
    servers = request.getfixturevalue(f"redis_{kind}")
    alone = [servers] if kind == "server" else servers
    rotation = Rotation(getattr(servers, "servers", alone))
    options = BackendOptions(uuid.uuid4().hex, driver={"credential_provider": rotation})
    with closing(open_backend(servers.url, options)) as store:
        running(store.enter(claim("task")))
        rotation.change()

        assert store.leave(claim("task"), Outcome.OVER).verdict == Left(carried=False)
        running(store.enter(claim("next")))


@pytest.mark.parametrize("kind", ["server", "sentinel", "cluster", "nodes"])
def test_a_provider_that_fails_makes_the_store_unavailable(
    kind: str, request: pytest.FixtureRequest
) -> None:
    class Away(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            raise RuntimeError("no token")

    options = BackendOptions(driver={"credential_provider": Away()})
    url = request.getfixturevalue(f"redis_{kind}").url
    with closing(open_backend(url, options)) as store, pytest.raises(BackendUnavailable):
        store.enter(claim("task"))


def notes_at(url: str, **driver: Any) -> dict[str, bytes]:
    """What an operation is told over a connection of its own."""
    backend = RedisBackend.from_url(url, BackendOptions("shop", driver=driver))
    try:
        return backend.notes("key")
    finally:
        backend.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_tls_is_spoken_with_a_server_that_shows_who_it_is(authority: Authority) -> None:
    with speaking_tls(authority, authority.signs("server")) as (_, port):
        url = f"rediss://127.0.0.1:{port}/0"

        assert notes_at(url, ssl_ca_certs=str(authority.file)) == {}
        assert notes_at(f"{url}?ssl_ca_certs={authority.file}") == {}


def test_a_server_of_an_unknown_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    with speaking_tls(authority, authority.signs("server")) as (_, port):
        required = {"ssl_ca_certs": str(stranger.file), "ssl_cert_reqs": "CERT_REQUIRED"}
        for driver in ({}, required):
            with pytest.raises(BackendUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                notes_at(f"rediss://127.0.0.1:{port}/0", **driver)


def test_a_certificate_for_another_host_is_refused_unless_names_are_not_checked(
    authority: Authority,
) -> None:
    trusted = {"ssl_ca_certs": str(authority.file)}
    with speaking_tls(authority, authority.signs("server", "elsewhere.example")) as (_, port):
        url = f"rediss://127.0.0.1:{port}/0"

        with pytest.raises(BackendUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            notes_at(url, **trusted)
        assert notes_at(url, ssl_check_hostname=False, **trusted) == {}
        assert notes_at(f"{url}?ssl_check_hostname=no", **trusted) == {}
        assert notes_at(url, ssl_cert_reqs="none") == {}
        assert notes_at(f"{url}?ssl_cert_reqs=CERT_NONE") == {}


def test_a_user_with_leave_asks_for_nothing_else(redis_server: RedisServer) -> None:
    """The contract goes by a clock of its own, and other prefixes."""
    let_in(redis_server)
    url = redis_server.url.replace("://", "://locks:secret@")
    with closing(RedisBackend.from_url(url, BackendOptions("dlock"))) as backend:
        assert backend.now() > 0
        running(backend.enter(claim("task")))
        backend.leave(claim("task"), Outcome.OVER)
        assert backend.sweep().wakes == ()
    with (
        closing(RedisBackend.from_url(url, BackendOptions("others"))) as others,
        pytest.raises(BackendUnavailable, match="no permissions"),
    ):
        others.enter(claim("task"))
