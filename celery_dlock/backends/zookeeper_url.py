"""From a ``zookeeper://`` URL to the arguments of a KazooClient, with nothing left to guess."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from kazoo.hosts import collect_hosts
from kazoo.security import CREATOR_ALL_ACL

from celery_dlock.backends.base import BackendOptions
from celery_dlock.core.checks import did_you_mean
from celery_dlock.errors import ConfigurationError

#: What of KazooClient may be set; the rest is ours.
OPTIONS = (
    *("use_ssl", "ca", "certfile", "keyfile", "keyfile_password", "verify_certs"),
    *("check_hostname", "sasl_options", "randomize_hosts"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Which servers, which folder there, and how a client is made."""

    hosts: str
    chroot: str
    arguments: Mapping[str, Any]


def place_of(url: str, options: BackendOptions) -> Place:
    """What *url* and *options* say. Raises :exc:`~celery_dlock.errors.ConfigurationError`."""
    user, hosts, chroot = _parts(url)
    arguments: dict[str, Any] = {"hosts": hosts, "timeout": options.ttl}
    arguments |= _driver(options.driver)
    if user is not None:
        arguments["auth_data"] = [("digest", user)]
    if user is not None or "sasl_options" in arguments:
        arguments["default_acl"] = CREATOR_ALL_ACL
    return Place(hosts, chroot, arguments)


def _parts(url: str) -> tuple[str | None, str, str]:
    """User with password, hosts, and folder. The URL is never quoted: it may have a password."""
    try:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        collect_hosts(hosts)
    except ValueError:
        raise ConfigurationError(
            "the URL is not of the form zookeeper://host1:2181,host2:2181/folder"
        ) from None
    if parts.query or parts.fragment:
        raise ConfigurationError(
            "a zookeeper:// URL takes no query; options go to dlock_backend_options"
        )
    if at and not all(user.partition(":")):
        raise ConfigurationError("a zookeeper:// URL takes user:password@ or neither of them")
    chroot = parts.path.rstrip("/")
    if any(folder in ("", ".", "..") for folder in chroot.split("/")[1:]):
        raise ConfigurationError("the folder of a zookeeper:// URL is absolute, as in /apps/shop")
    return (unquote(user) if at else None), hosts, chroot


def _driver(driver: Mapping[str, Any]) -> dict[str, Any]:
    for name in driver:
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS)
            raise ConfigurationError(f"dlock_backend_options for zookeeper has {name!r}; {hint}")
    found = dict(driver)
    if found.get("use_ssl"):  # kazoo alone would take any server's certificate for its own
        found.setdefault("check_hostname", found.get("verify_certs", True))
    if found.get("check_hostname") and not found.get("verify_certs", True):
        raise ConfigurationError("check_hostname needs verify_certs")
    if found.get("sasl_options") and importlib.util.find_spec("puresasl") is None:
        raise ConfigurationError('sasl_options need another package: pip install "kazoo[sasl]"')
    return found
