"""Who may use an etcd: users with a token that does not last, and TLS."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from tests.contract.etcd_store import counted, rows_at
from tests.inspection.patients import found
from tests.services.certificates import Authority, Signed
from tests.services.etcd import EtcdServer
from tests.services.until import until

pytestmark = pytest.mark.server("etcd")

VERSION_ROW = Name(Kind.VERSION_ROW, "key")
PASSWORD = "p@ss,w/ord"
LOGIN = "etcd://root:p%40ss%2Cw%2Ford@"


@pytest.fixture
def guarded_server() -> Iterator[EtcdServer]:
    """One that asks for a password, with tokens that last for a second if they are not used."""
    with EtcdServer("--auth-token-ttl", "1") as server:
        server.lets_in(PASSWORD, "locks/")
        yield server


def test_a_password_opens_and_its_lack_is_told(guarded_server: EtcdServer) -> None:
    with rows_at(LOGIN + guarded_server.address) as rows:
        assert rows.commit(Commit(VERSION_ROW, None, b"", held=(Name(Kind.HOLDER, "key"), b"")))
    for login in ("", "root:hunter2@", "nobody:hunter2@"):
        with rows_at(f"etcd://{login}{guarded_server.address}") as rows:
            with pytest.raises(BackendUnavailable) as caught:
                rows.read([VERSION_ROW])
            assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_user_needs_nothing_but_the_prefix(guarded_server: EtcdServer) -> None:
    login = LOGIN.replace("root", "worker") + guarded_server.address
    with rows_at(login, "locks") as rows:
        committed = rows.commit(
            Commit(VERSION_ROW, None, b"", held=(Name(Kind.HOLDER, "key"), b""), lease=30_000_000)
        )
        assert committed is not None
        assert rows.alive([Name(Kind.HOLDER, "key")], 60_000_000) == [True]
        assert rows.names(Kind.VERSION_ROW) == [VERSION_ROW]
        rows.drop(Name(Kind.HOLDER, "key"))
    with rows_at(login, "other") as rows, pytest.raises(BackendUnavailable, match="denied"):
        rows.read([VERSION_ROW])


def test_a_token_that_has_ended_is_fetched_anew_within_the_call(guarded_server: EtcdServer) -> None:
    with rows_at(LOGIN + guarded_server.address) as rows:
        version_row = None
        with counted(guarded_server) as cost:
            for _ in range(3):
                committed = rows.commit(Commit(VERSION_ROW, version_row, b"x"))
                assert committed is not None
                version_row = committed.version_row
                _outlive(2.5)

        assert cost["Authenticate"] == 3


def _outlive(seconds: float) -> None:
    over = time.monotonic() + seconds
    until("what lasts for less has ended", lambda: time.monotonic() > over)


def test_a_restarted_server_that_knows_no_token_is_asked_again(guarded_server: EtcdServer) -> None:
    with rows_at(LOGIN + guarded_server.address) as rows:
        holder = Name(Kind.HOLDER, "key")
        rows.commit(Commit(VERSION_ROW, None, b"", held=(holder, b""), lease=60_000_000))

        guarded_server.restart()

        assert rows.alive([holder], 61_000_000) == [True]


def test_a_password_is_no_hindrance_where_nobody_asks(own_etcd_server: EtcdServer) -> None:
    with rows_at(LOGIN + own_etcd_server.address) as rows:
        committed = rows.commit(Commit(VERSION_ROW, None, b"1"))
        assert committed is not None

        own_etcd_server.ask("auth/user/add", name="root", password=PASSWORD)
        own_etcd_server.ask("auth/user/grant", user="root", role="root")
        own_etcd_server.ask("auth/enable")

        assert rows.commit(Commit(VERSION_ROW, committed.version_row, b"2"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mine(authority: Authority) -> dict[str, Any]:
    """The options of a client with a certificate of its own."""
    client = authority.signs("client")
    return {"cert_cert": str(client.certificate), "cert_key": str(client.key)}


def speaking_tls(authority: Authority, signed: Signed) -> EtcdServer:
    """One that speaks to those alone who have a certificate of *authority*."""
    given = {"cert": signed.certificate, "key": signed.key, "trusted-ca": authority.file}
    options = [f"--{name}-file={file}" for name, file in given.items()]
    return EtcdServer("--client-cert-auth", *options)


@pytest.fixture
def secure_server(authority: Authority) -> Iterator[EtcdServer]:
    with speaking_tls(authority, authority.signs("server")) as server:
        yield server


def test_tls_lets_in_who_has_a_certificate(
    secure_server: EtcdServer, authority: Authority, mine: dict[str, Any], tmp_path: Path
) -> None:
    url = f"etcd+https://{secure_server.address}"
    ca: dict[str, Any] = {"ca_cert": authority.file}
    stranger = Authority(tmp_path, "stranger").file

    with rows_at(url, **ca, **mine) as rows:
        assert rows.commit(Commit(VERSION_ROW, None, b""))
    for options in ({}, ca, mine, {**mine, "ca_cert": stranger}):
        with rows_at(url, timeout=2, **options) as rows, pytest.raises(BackendUnavailable):
            rows.read([VERSION_ROW])
    plain = f"etcd://{secure_server.address}"
    with rows_at(plain, timeout=2) as rows, pytest.raises(BackendUnavailable):
        rows.read([VERSION_ROW])


def test_a_certificate_for_another_is_refused(authority: Authority, mine: dict[str, Any]) -> None:
    elsewhere = authority.signs("elsewhere", "elsewhere.example")
    with speaking_tls(authority, elsewhere) as server:
        url = f"etcd+https://{server.address}"
        with (
            rows_at(url, timeout=2, ca_cert=authority.file, **mine) as rows,
            pytest.raises(BackendUnavailable),
        ):
            rows.read([VERSION_ROW])
        named = (("grpc.ssl_target_name_override", "elsewhere.example"),)
        with rows_at(url, ca_cert=authority.file, grpc_options=named, **mine) as rows:
            assert rows.commit(Commit(VERSION_ROW, None, b""))


def test_the_doctor_has_the_certificate_too(
    secure_server: EtcdServer, authority: Authority, mine: dict[str, Any], tmp_path: Path
) -> None:
    """For calls, and for the figures that it reads over HTTP."""
    options = {"ca_cert": str(authority.file), **mine}
    url = f"etcd+https://{secure_server.address}"

    assert found(tmp_path, dlock_url=url, dlock_backend_options=options).keys() - {
        "etcd-version"
    } == {"etcd-single"}
