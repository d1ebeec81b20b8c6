"""Who the server is, by TLS, and who we are, by SASL: on servers that speak it."""

from __future__ import annotations

import gc
import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from celery_dlock.errors import BackendUnavailable
from tests.contract.zookeeper_store import HELD, SECOND, hold, rows_at
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


def write_certificate(path: Path, host: str) -> None:
    """One that signs itself, with its key, for *host* or an address."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    path.write_bytes(private + public)
    path.with_name(f"public-{path.name}").write_bytes(public)


def serving(folder: Path, host: str) -> tuple[ZooKeeperServer, str]:
    """A server with a certificate for *host*, and the address at which it speaks TLS."""
    (port,) = free_ports(1)
    write_certificate(folder / "server.pem", host)
    options: dict[str, Any] = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "ssl.clientAuth": "none",
        "ssl.keyStore.location": folder / "server.pem",
        "ssl.trustStore.location": folder / "public-server.pem",
    }
    server = ZooKeeperServer(**options)
    server.properties = {
        "zookeeper.serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory"
    }
    return server, f"zookeeper://127.0.0.1:{port}"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do not wait long for a connection that is refused, and leave nothing to other tests."""
    monkeypatch.setattr("celery_dlock.backends.zookeeper_session.ANSWER_TIMEOUT", 2.0)
    yield
    gc.collect()


def test_it_speaks_tls_and_checks_who_answers(tmp_path: Path, refused: None) -> None:
    server, url = serving(tmp_path, "127.0.0.1")
    write_certificate(tmp_path / "other.pem", "127.0.0.1")
    with server:
        with rows_at(url, use_ssl=True, ca=str(tmp_path / "public-server.pem")) as rows:
            hold(rows)
            assert rows.alive([HELD], SECOND) == [True]
        wrong: tuple[dict[str, Any], ...] = ({"ca": str(tmp_path / "public-other.pem")}, {})
        for driver in wrong:
            with (
                rows_at(url, use_ssl=True, **driver) as rows,
                pytest.raises(BackendUnavailable, match="CERTIFICATE_VERIFY_FAILED"),
            ):
                rows.read([HELD])


def test_a_certificate_for_another_host_is_refused_unless_names_are_not_checked(
    tmp_path: Path, refused: None
) -> None:
    server, url = serving(tmp_path, "elsewhere.example")
    tls: dict[str, Any] = {"use_ssl": True, "ca": str(tmp_path / "public-server.pem")}
    with server:
        with rows_at(url, **tls) as rows, pytest.raises(BackendUnavailable):
            rows.read([HELD])
        with rows_at(url, check_hostname=False, **tls) as rows:
            assert rows.read([HELD]) == [None]


JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_shop="secret";
};
"""


def test_it_says_who_it_is_by_sasl(tmp_path: Path, refused: None) -> None:
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
                pytest.raises(BackendUnavailable, match="NoAuth"),
            ):
                others.read([HELD])
        wrong = {**sasl, "password": "wrong"}
        with rows_at(server.url, prefix="shop", sasl_options=wrong) as rows:
            for _ in range(2):
                with pytest.raises(BackendUnavailable):
                    rows.read([HELD])
