"""What a ``zookeeper://`` URL and its options say, and what is refused, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.security import CREATOR_ALL_ACL

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.zookeeper.client import OPTIONS, address_of
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend

NOTHING = BackendOptions(ttl=12.5)


@pytest.mark.parametrize(
    ("url", "hosts", "chroot"),
    [
        ("zookeeper://h", "h", ""),
        ("zookeeper://h/", "h", ""),
        ("zookeeper://h1:2181,h2:2182,h3", "h1:2181,h2:2182,h3", ""),
        ("zookeeper://h1,h2/apps/shop", "h1,h2", "/apps/shop"),
        ("zookeeper://h/apps/", "h", "/apps"),
        ("zookeeper://[::1]:2181,h", "[::1]:2181,h", ""),
        ("zookeeper://h,[::1]:2181/a", "h,[::1]:2181", "/a"),
        ("zookeeper://u:p@h1,h2/x", "h1,h2", "/x"),
    ],
)
def test_hosts_and_folder(url: str, hosts: str, chroot: str) -> None:
    address = address_of(url, NOTHING)
    assert (address.hosts, address.chroot) == (hosts, chroot)
    assert address.arguments["hosts"] == hosts
    assert address.arguments["timeout"] == 12.5


def test_a_user_is_the_only_one_who_may_use_what_it_makes() -> None:
    arguments = address_of("zookeeper://sh%40p:a%2Fb%3Ac@h", NOTHING).arguments
    assert arguments["auth_data"] == [("digest", "sh@p:a/b:c")]
    assert arguments["default_acl"] == CREATOR_ALL_ACL
    assert "default_acl" not in address_of("zookeeper://h", NOTHING).arguments


@pytest.mark.parametrize(
    "url",
    [
        *("zookeeper://", "zookeeper:///x", "zookeeper://h1,,h2", "zookeeper://secret:x@"),
        *("zookeeper://h:secret", "zookeeper://secret@h", "zookeeper://:secret@h"),
        *("zookeeper://secret:@h", "zookeeper://h/x?secret=1", "zookeeper://h#secret"),
        *("zookeeper://h/a//secret", "zookeeper://h/../secret", "zookeeper://h/./secret"),
        "zookeeper://[::secret",
    ],
)
def test_what_cannot_be_read_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ZooKeeperBackend.from_url(url, NOTHING)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("driver", [{"use_tls": True}, {"hosts": "h"}, {"handler": None}, {"x": 1}])
def test_an_option_that_is_unknown_or_ours_is_refused(driver: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean|known: "):
        address_of("zookeeper://h", BackendOptions(driver=driver))


def test_every_option_goes_to_the_driver() -> None:
    driver = dict.fromkeys(OPTIONS, False) | {"verify_certs": True}
    address = address_of("zookeeper://h", BackendOptions(driver=driver))
    assert {name: address.arguments[name] for name in OPTIONS} == driver


def test_with_tls_the_name_of_the_server_is_checked() -> None:
    def checks(**driver: Any) -> bool:
        options = BackendOptions(driver={"use_ssl": True, **driver})
        return bool(address_of("zookeeper://h", options).arguments["check_hostname"])

    assert checks()
    assert not checks(check_hostname=False)
    assert not checks(verify_certs=False)


def test_a_name_in_a_certificate_that_is_not_verified_says_nothing() -> None:
    driver = {"use_ssl": True, "verify_certs": False, "check_hostname": True}
    with pytest.raises(ConfigurationError, match="verify_certs"):
        address_of("zookeeper://h", BackendOptions(driver=driver))
