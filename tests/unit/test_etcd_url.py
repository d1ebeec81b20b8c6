"""An etcd URL is read when the store is built, without a connection and without a secret told."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.etcd.address import address_of
from celery_dlock.stores.etcd.store import EtcdBackend


@pytest.mark.parametrize(
    ("url", "endpoints", "user", "password"),
    [
        ("etcd://h", ("h:2379",), None, ""),
        ("etcd://h:7/", ("h:7",), None, ""),
        ("etcd://a:1,b,[::1]:3", ("a:1", "b:2379", "[::1]:3"), None, ""),
        ("etcd://u:p%40%2Cs@h,h2:7", ("h:2379", "h2:7"), "u", "p@,s"),
        ("ETCD://h", ("h:2379",), None, ""),
    ],
)
def test_a_url_names_members_and_user(
    url: str, endpoints: tuple[str, ...], user: str | None, password: str
) -> None:
    address = address_of(url, {})
    assert address.endpoints == endpoints
    assert (address.user, address.password) == (user, password)
    assert address.tls is None


def test_tls_takes_the_certificates_that_are_given(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----")

    bare = address_of("etcd+https://h", {}).tls
    alone = address_of("etcd+https://h", {"ca_cert": str(tmp_path / "ca")}).tls
    names = {"ca_cert": "ca", "cert_cert": "cert", "cert_key": "key"}
    full = address_of("etcd+https://h", {n: tmp_path / file for n, file in names.items()}).tls

    assert bare is not None
    assert (bare.ca, bare.cert, bare.key) == (None, None, None)
    assert alone is not None
    assert (alone.ca, alone.cert) == (b"-----BEGIN ca-----", None)
    assert full is not None
    assert (full.cert, full.key) == (b"-----BEGIN cert-----", b"-----BEGIN key-----")


def test_an_answer_is_waited_for_five_seconds_unless_told_otherwise() -> None:
    assert address_of("etcd://h", {}).timeout == 5.0
    assert address_of("etcd://h", {"timeout": 1}).timeout == 1.0


@pytest.mark.parametrize(
    "url",
    [
        "etcd://",
        "etcd://h,",
        "etcd://h:0",
        "etcd://h:99999",
        "etcd://h:port",
        "etcd://h/dlock",
        "etcd://h?timeout=1",
        "etcd://h#part",
        "etcd://hunter2@h",
        "etcd://:hunter2@h",
        "etcd://u:@hunter2:x",
        "etcd://u:hunter2/x@h",
        "etcd://u:hunter2@[::1",
        "etcd://u:hunter2@a b",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_and_its_password_not_told(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EtcdBackend.from_url(url, BackendOptions())
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "driver",
    [
        {"no_such_option": 1},
        {"timeout": 0},
        {"timeout": "5"},
        {"timeout": True},
        {"timeout": float("nan")},
        {"grpc_options": 5},
        {"grpc_options": [("name", None)]},
        {"grpc_options": [1]},
        {"ca_cert": __file__},
    ],
)
def test_an_option_that_cannot_be_is_refused(driver: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        EtcdBackend.from_url("etcd://h", BackendOptions(driver=driver))


@pytest.mark.parametrize(
    "driver",
    [
        {"ca_cert": "/no/such/file"},
        {"ca_cert": "/dev/null"},
        {"ca_cert": 5},
        {"cert_cert": __file__},
        {"cert_key": __file__},
    ],
)
def test_certificates_that_are_none_are_refused(driver: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        EtcdBackend.from_url("etcd+https://h", BackendOptions(driver=driver))


def test_neither_password_nor_key_is_shown() -> None:
    shown = repr(address_of("etcd://u:hunter2@h", {}))
    assert "hunter2" not in shown
