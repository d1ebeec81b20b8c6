"""Where an etcd is and how one gets in: its URL and the driver's options, checked as they are read.

The options bear etcd3's names. Nothing of the URL goes into a message: it may carry a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from celery_dlock.core.checks import duration
from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import servers_of

DEFAULT_PORT = 2379

#: Seconds that an operation waits for its answer.
ANSWER_TIMEOUT = 5.0

_TLS = ("ca_cert", "cert_cert", "cert_key")
_OPTIONS = (*_TLS, "timeout", "grpc_options")
_ENDPOINT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+)(:(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Certificates:
    """What TLS needs, in PEM; ``None`` stands for gRPC's own roots, and for no client's."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """The members of one etcd, any of which answers for all."""

    endpoints: tuple[str, ...]
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: Certificates | None = field(default=None, repr=False)
    timeout: float = ANSWER_TIMEOUT
    grpc_options: tuple[tuple[str, Any], ...] = ()

    @property
    def place(self) -> str:
        """For messages."""
        return f"etcd at {','.join(self.endpoints)}"


def address_of(url: str, driver: Mapping[str, Any]) -> Address:
    """Read ``etcd[+https]://[user:password@]host[:port][,host[:port]…]``.

    Raises :exc:`~celery_dlock.errors.ConfigurationError`.
    """
    unknown = sorted(map(str, set(driver) - set(_OPTIONS)))
    if unknown:
        raise ConfigurationError(
            f"dlock_backend_options for etcd knows {', '.join(_OPTIONS)}; got {', '.join(unknown)}"
        )
    hosts, user, password = _authority(url)
    return Address(
        endpoints=tuple(map(_endpoint, hosts.split(","))),
        user=user,
        password=password,
        tls=_certificates(url.lower().startswith("etcd+https:"), driver),
        timeout=duration("timeout in dlock_backend_options", driver.get("timeout", ANSWER_TIMEOUT)),
        grpc_options=_grpc_options(driver.get("grpc_options", ())),
    )


def _authority(url: str) -> tuple[str, str | None, str]:
    """Hosts, user and password in *url*."""
    servers, parts = servers_of(url)
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigurationError(
            "the URL of an etcd ends with its members, as in etcd://host:2379,host2:2379; "
            "dlock_key_prefix keeps applications apart, and a password is percent-encoded"
        )
    login, at, hosts = servers.rpartition("@")
    if not at:
        return hosts, None, ""
    user, colon, password = login.partition(":")
    if not user or not colon or not password:
        raise ConfigurationError("the URL of an etcd names both a user and a password, or neither")
    return hosts, unquote(user), unquote(password)


def _endpoint(text: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigurationError("the URL of an etcd names members as in host:2379 or [::1]:2379")
    return f"{match['host']}:{port}"


def _certificates(secure: bool, driver: Mapping[str, Any]) -> Certificates | None:
    given = {name: driver[name] for name in _TLS if driver.get(name) is not None}
    if not secure:
        if given:
            raise ConfigurationError(
                f"{', '.join(given)} in dlock_backend_options needs etcd+https:// in dlock_url"
            )
        return None
    if ("cert_cert" in given) != ("cert_key" in given):
        raise ConfigurationError(
            "dlock_backend_options has only one of cert_cert and cert_key: give both, or neither"
        )
    files = {name: _content(name, path) for name, path in given.items()}
    return Certificates(files.get("ca_cert"), files.get("cert_cert"), files.get("cert_key"))


def _content(name: str, path: Any) -> bytes:
    try:
        content = Path(path).read_bytes()
    except (OSError, TypeError) as exc:
        what = f"{name} in dlock_backend_options must be a file to read"
        raise ConfigurationError(f"{what}, got {path!r}: {exc}") from exc
    if b"-----BEGIN" not in content:
        raise ConfigurationError(
            f"{name} in dlock_backend_options must be a file in PEM, got {path!r}"
        )
    return content


def _grpc_options(value: Any) -> tuple[tuple[str, Any], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    try:
        options = tuple((name, setting) for name, setting in pairs)
    except (TypeError, ValueError):
        options = ((None, None),)
    if not all(isinstance(name, str) and isinstance(v, int | str | bytes) for name, v in options):
        raise ConfigurationError(
            "grpc_options in dlock_backend_options must be pairs of a name and a number or text"
        )
    return options
