"""Who may use an etcd: users with a token that does not last, and TLS."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from celery_dlock.backends.rows import Commit, Kind, Name
from celery_dlock.errors import BackendUnavailable
from tests.contract.etcd_store import counted, rows_at
from tests.inspection.patients import found
from tests.services.etcd import EtcdServer
from tests.services.until import until

pytestmark = pytest.mark.server("etcd")

GUARD = Name(Kind.GUARD, "key")
PASSWORD = "p@ss,w/ord"
LOGIN = "etcd://root:p%40ss%2Cw%2Ford@"


@pytest.fixture
def guarded_server() -> Iterator[EtcdServer]:
    """One that asks for a password, with tokens that last for a second if they are not used."""
    with EtcdServer("--auth-token-ttl", "1") as server:
        server.ask("auth/user/add", name="root", password=PASSWORD)
        server.ask("auth/role/add", name="locks")
        first, end = (base64.b64encode(key).decode() for key in (b"locks/", b"locks0"))
        permission = {"permType": "READWRITE", "key": first, "range_end": end}
        server.ask("auth/role/grant", name="locks", perm=permission)
        server.ask("auth/user/add", name="worker", password=PASSWORD)
        server.ask("auth/user/grant", user="root", role="root")
        server.ask("auth/user/grant", user="worker", role="locks")
        server.ask("auth/enable")
        yield server


def test_a_password_opens_and_its_lack_is_told(guarded_server: EtcdServer) -> None:
    with rows_at(LOGIN + guarded_server.address) as rows:
        assert rows.commit(Commit(GUARD, None, b"", held=(Name(Kind.HOLDER, "key"), b"")))
    for login in ("", "root:hunter2@", "nobody:hunter2@"):
        with rows_at(f"etcd://{login}{guarded_server.address}") as rows:
            with pytest.raises(BackendUnavailable) as caught:
                rows.read([GUARD])
            assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_user_needs_nothing_but_the_prefix(guarded_server: EtcdServer) -> None:
    login = LOGIN.replace("root", "worker") + guarded_server.address
    with rows_at(login, "locks") as rows:
        committed = rows.commit(
            Commit(GUARD, None, b"", held=(Name(Kind.HOLDER, "key"), b""), lease=30_000_000)
        )
        assert committed is not None
        assert rows.alive([Name(Kind.HOLDER, "key")], 60_000_000) == [True]
        assert rows.names(Kind.GUARD) == [GUARD]
        rows.drop(Name(Kind.HOLDER, "key"))
    with rows_at(login, "other") as rows, pytest.raises(BackendUnavailable, match="denied"):
        rows.read([GUARD])


def test_a_token_that_has_ended_is_fetched_anew_within_the_call(guarded_server: EtcdServer) -> None:
    with rows_at(LOGIN + guarded_server.address) as rows:
        guard = None
        with counted(guarded_server) as cost:
            for _ in range(3):
                committed = rows.commit(Commit(GUARD, guard, b"x"))
                assert committed is not None
                guard = committed.guard
                _outlive(2.5)

        assert cost["Authenticate"] == 3


def _outlive(seconds: float) -> None:
    over = time.monotonic() + seconds
    until("what lasts for less has ended", lambda: time.monotonic() > over)


def test_a_restarted_server_knows_no_token_and_is_asked_for_another(
    guarded_server: EtcdServer,
) -> None:
    with rows_at(LOGIN + guarded_server.address) as rows:
        holder = Name(Kind.HOLDER, "key")
        rows.commit(Commit(GUARD, None, b"", held=(holder, b""), lease=60_000_000))

        guarded_server.restart()

        assert rows.alive([holder], 61_000_000) == [True]


def test_a_password_is_no_hindrance_where_nobody_asks(own_etcd_server: EtcdServer) -> None:
    with rows_at(LOGIN + own_etcd_server.address) as rows:
        committed = rows.commit(Commit(GUARD, None, b"1"))
        assert committed is not None

        own_etcd_server.ask("auth/user/add", name="root", password=PASSWORD)
        own_etcd_server.ask("auth/user/grant", user="root", role="root")
        own_etcd_server.ask("auth/enable")

        assert rows.commit(Commit(GUARD, committed.guard, b"2"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An authority, a server's and a client's certificate that it has signed, and a stranger."""
    folder = tmp_path_factory.mktemp("certificates")
    files = {}
    for authority, names in (("ca", ["server", "client"]), ("stranger", [])):
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _certificate(authority, key.public_key(), authority, key)
        files[authority] = folder / f"{authority}.pem"
        files[authority].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        for name in names:
            own = ec.generate_private_key(ec.SECP256R1())
            files[name], files[f"{name}-key"] = folder / f"{name}.pem", folder / f"{name}.key"
            signed = _certificate(name, own.public_key(), authority, key)
            files[name].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
            files[f"{name}-key"].write_bytes(
                own.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
    return files


def _certificate(
    name: str, public: ec.EllipticCurvePublicKey, by: str, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    called = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, by)]
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (
        x509.CertificateBuilder()
        .subject_name(called[0])
        .issuer_name(called[1])
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=name == by, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .sign(key, hashes.SHA256())
    )


@pytest.fixture
def secure_server(certificates: dict[str, Path]) -> Iterator[EtcdServer]:
    """One that speaks TLS, to those alone who have a certificate."""
    given = {"cert": "server", "key": "server-key", "trusted-ca": "ca"}
    options = [f"--{name}-file={certificates[file]}" for name, file in given.items()]
    with EtcdServer("--client-cert-auth", *options) as server:
        yield server


def test_tls_lets_in_who_has_a_certificate(
    secure_server: EtcdServer, certificates: dict[str, Path]
) -> None:
    url = f"etcd+https://{secure_server.address}"
    ca: dict[str, Any] = {"ca_cert": certificates["ca"]}
    mine: dict[str, Any] = {
        "cert_cert": certificates["client"],
        "cert_key": certificates["client-key"],
    }

    with rows_at(url, **ca, **mine) as rows:
        assert rows.commit(Commit(GUARD, None, b""))
    for options in ({}, ca, mine, {**mine, "ca_cert": certificates["stranger"]}):
        with rows_at(url, timeout=2, **options) as rows, pytest.raises(BackendUnavailable):
            rows.read([GUARD])
    plain = f"etcd://{secure_server.address}"
    with rows_at(plain, timeout=2) as rows, pytest.raises(BackendUnavailable):
        rows.read([GUARD])


def test_the_doctor_has_the_certificate_too(
    secure_server: EtcdServer, certificates: dict[str, Path], tmp_path: Path
) -> None:
    """For calls, and for the figures that it reads over HTTP."""
    mine = {
        "ca_cert": str(certificates["ca"]),
        "cert_cert": str(certificates["client"]),
        "cert_key": str(certificates["client-key"]),
    }
    url = f"etcd+https://{secure_server.address}"

    assert found(tmp_path, dlock_url=url, dlock_backend_options=mine).keys() - {"etcd-version"} == {
        "etcd-single"
    }
