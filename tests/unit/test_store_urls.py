"""The URLs of the stores are read when a store is built, without a connection or a secret told."""

from __future__ import annotations

import ssl
import traceback
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from kazoo.security import CREATOR_ALL_ACL
from redis.connection import SSLConnection

from celery_dlock.errors import ConfigurationError
from celery_dlock.registry import open_backend
from celery_dlock.settings import Settings
from celery_dlock.stores.base import BackendOptions, Guarantee, Trait
from celery_dlock.stores.etcd.address import address_of as etcd_address
from celery_dlock.stores.redis.client import session_of
from celery_dlock.stores.redis.cluster_session import session_of_cluster
from celery_dlock.stores.redis.sentinel import session_of_sentinels
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redlock.node import Nodes
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.stores.zookeeper.client import OPTIONS
from celery_dlock.stores.zookeeper.client import address_of as zookeeper_address

REDIS_PY = int(redis.__version__.split(".")[0])

#: URLs that cannot be meant, and what the refusal says, where there is more than one kind.
REFUSED: list[str | tuple[str, str]] = [
    *("redis://h/dlock", "redis://h/-1", "redis://h:port/0", "redis://h:99999999/0"),
    *("redis://:hunter2/x@h/0", "redis://:hunter2@[::1/0", "redis+unix://"),
    *("redis://u:hunter2@h/0?socket_timeout=soon", "redis://u:hunter2@h/0?no_such_option=1"),
    *("redis://u:hunter2@h/0?retry=5", "redis+unix://u:hunter2@?db=1"),
    *(("redlock://a", "at least three"), ("redlock://a,b/0", "at least three")),
    *(("redlock://a,b,a", "only once"), ("redlock://a,b,A:6379", "only once")),
    ("redlock://a,b,c?queue=d", "queue= .* none of its nodes: a:6379, b:6379, c:6379"),
    ("redlock://a,b,c?queue=a:1", "none of its nodes"),
    ("redlock://a,b,c/first", "number of a database"),
    *(("redlock://:hunter2@a,b,", "cannot use"), ("redlock://:hunter2@a,b,c:port", "cannot use")),
    ("redlock://:hunter2@a,b,c?no_such_option=1", "cannot use"),
    *("etcd://", "etcd://h,", "etcd://h:0", "etcd://h:99999", "etcd://h:port", "etcd://h/dlock"),
    *("etcd://h?timeout=1", "etcd://h#part", "etcd://hunter2@h", "etcd://:hunter2@h"),
    *("etcd://u:@hunter2:x", "etcd://u:hunter2/x@h", "etcd://u:hunter2@[::1"),
    *("etcd://u:hunter2@a b", "zookeeper://", "zookeeper:///x", "zookeeper://h1,,h2"),
    *("zookeeper://hunter2:x@", "zookeeper://h:hunter2", "zookeeper://hunter2@h"),
    *("zookeeper://:hunter2@h", "zookeeper://hunter2:@h", "zookeeper://h/x?hunter2=1"),
    *("zookeeper://h#hunter2", "zookeeper://h/a//hunter2", "zookeeper://h/../hunter2"),
    *("zookeeper://h/./hunter2", "zookeeper://[::hunter2"),
]


@pytest.mark.parametrize("url", REFUSED, ids=str)
def test_a_url_is_refused_without_telling_its_password(url: str | tuple[str, str]) -> None:
    given, why = url if isinstance(url, tuple) else (url, None)

    with pytest.raises(ConfigurationError, match=why) as caught:
        open_backend(given, BackendOptions())

    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("url", "driver", "why"),
    [
        ("redis://h", {"no_such_option": 1}, "option 'no_such_option'"),
        *(
            (url, {"ssl_cert_reqs": value}, f"^ssl_cert_reqs={value!r}, .* CERT_NONE, none")
            for url in (
                "rediss://h",
                "redis+sentinel://h/m",
                "redis+cluster://h",
                "redlock://a,b,c",
            )
            for value in ("sometimes", "Required", 5)
        ),
        (
            "redis+sentinel://h/m",
            {"sentinel_kwargs": {"ssl": True, "ssl_cert_reqs": "yes"}},
            "^ssl_cert_reqs='yes'",
        ),
        *(("etcd://h", {name: 1}, None) for name in ("no_such_option", "grpc_options", "ca_cert")),
        *(("etcd://h", {"timeout": value}, None) for value in (0, "5", True, float("nan"))),
        *(("etcd://h", {"grpc_options": value}, None) for value in ([("name", None)], [1])),
        ("etcd://h", {"ca_cert": __file__}, None),
        *(
            ("etcd+https://h", {"ca_cert": file}, None)
            for file in ("/no/such/file", "/dev/null", 5)
        ),
        *(("etcd+https://h", {name: __file__}, None) for name in ("cert_cert", "cert_key")),
        ("zookeeper://h", {"use_tls": True}, "did you mean"),
        *(("zookeeper://h", {name: None}, "known: ") for name in ("hosts", "handler", "x")),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused(url: str, driver: dict[str, Any], why: str | None) -> None:
    with pytest.raises(ConfigurationError, match=why):
        open_backend(url, BackendOptions(driver=driver))


class TestRedis:
    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("redis://localhost", {"host": "localhost"}),
            ("redis://h:7/2", {"host": "h", "port": 7, "db": 2}),
            ("redis://u:p%40ss@h/0", {"username": "u", "password": "p@ss", "db": 0}),
            ("rediss://h:7", {"host": "h", "port": 7}),
            ("valkey://u:p%40ss@h:7/2", {"host": "h", "port": 7, "db": 2, "password": "p@ss"}),
            ("redis+unix:///run/redis.sock?db=3", {"path": "/run/redis.sock", "db": 3}),
        ],
    )
    def test_a_url_names_host_port_and_user(self, url: str, expected: dict[str, Any]) -> None:
        settings = pool_of(url).connection_kwargs
        assert {name: settings.get(name) for name in expected} == expected

    def test_a_valkey_with_tls_is_spoken_to_with_tls(self) -> None:
        assert pool_of("valkeys://h").connection_class is SSLConnection

    def test_the_store_is_not_waited_for_without_end(self) -> None:
        settings = pool_of("redis://h").connection_kwargs
        assert (settings["socket_connect_timeout"], settings["socket_timeout"]) == (2.0, 5.0)

    def test_options_and_the_query_override_the_defaults(self) -> None:
        for url, timeout in (("redis://h", 1), ("redis://h?socket_timeout=9", 9.0)):
            assert pool_of(url, socket_timeout=1).connection_kwargs["socket_timeout"] == timeout

    def test_answers_stay_bytes_whatever_the_options_say(self) -> None:
        decoding = pool_of("redis://h", decode_responses=True).connection_kwargs
        assert decoding["decode_responses"] is False

    @pytest.mark.parametrize(
        ("url", "driver"),
        [
            ("rediss://h", {}),
            ("redis+sentinel://h/shop", {"ssl": True}),
            ("redlock://a,b,c", {"connection_class": SSLConnection}),
        ],
    )
    def test_tls_checks_the_name_in_a_certificate(self, url: str, driver: dict[str, Any]) -> None:
        assert connection(url, driver)["ssl_check_hostname"] is True
        unnamed = {**driver, "ssl_check_hostname": False}
        assert connection(url, unnamed)["ssl_check_hostname"] is False
        for none in ("none", "CERT_NONE", None, ssl.CERT_NONE):
            unchecked = connection(url, {**driver, "ssl_cert_reqs": none})
            assert not unchecked.get("ssl_check_hostname")

    @pytest.mark.parametrize(
        ("url", "driver"),
        [
            ("rediss://h?{}", {}),
            ("redis+sentinel://h/shop?{}", {"ssl": True}),
            ("redlock://a,b,c?{}", {"connection_class": SSLConnection}),
            ("redis+cluster://h?{}", {"ssl": True}),
        ],
    )
    @pytest.mark.parametrize("name", ["required", "optional", "none"])
    def test_celery_and_redis_py_spell_which_certificates_are_asked_for(
        self, url: str, driver: dict[str, Any], name: str
    ) -> None:
        if "cluster" in url and name != "none" and REDIS_PY < 6:
            pytest.skip("redis-py before 6 checks no names of a cluster: it is refused")
        for spelled in (name, f"CERT_{name.upper()}"):
            for query, options in (
                (f"ssl_cert_reqs={spelled}", {}),
                ("", {"ssl_cert_reqs": spelled}),
            ):
                made = connection(url.format(query), {**driver, **options})
                assert made["ssl_cert_reqs"] == name

    def test_a_cluster_with_tls_is_refused_where_redis_py_checks_no_names(self) -> None:
        is_old = REDIS_PY < 6
        with pytest.raises(ConfigurationError, match="redis 6") if is_old else nullcontext():
            session_of_cluster("redis+cluster://h", {"ssl": True})
        session_of_cluster("redis+cluster://h", {"ssl": True, "ssl_cert_reqs": "none"})


def pool_of(url: str, **driver: Any) -> Any:
    store = RedisBackend.from_url(url, BackendOptions(driver=driver))
    return store._session().client.connection_pool


def connection(url: str, driver: dict[str, Any]) -> dict[str, Any]:
    """What redis-py is told of each connection."""
    if url.startswith("redlock"):
        return dict(Nodes.of(url, driver, 30).options[0])
    session: Any
    if "cluster" in url:
        session = session_of_cluster(url, driver)
        return dict(session._options)
    if "sentinel" in url:
        session = session_of_sentinels(url, BackendOptions(driver=driver))
    else:
        session = session_of(url, driver)
    return dict(session.client.connection_pool.connection_kwargs)


class TestRedlock:
    @pytest.mark.parametrize(
        ("url", "places", "queue"),
        [
            ("redlock://a:1,b,C:3/0", ["a:1", "b:6379", "c:3"], 0),
            ("redlock://[::1]:7,[::2],c", ["::1:7", "::2:6379", "c:6379"], 0),
            ("redlock://a,b,c,d", ["a:6379", "b:6379", "c:6379", "d:6379"], 0),
            ("redlock://a,b,c:7/1?queue=c:7", ["a:6379", "b:6379", "c:7"], 2),
            ("redlock://a,b,c:7?queue=b", ["a:6379", "b:6379", "c:7"], 1),
        ],
    )
    def test_a_url_names_nodes_and_queue(self, url: str, places: list[str], queue: int) -> None:
        nodes = Nodes.of(url, {}, 30)
        assert [f"{node['host']}:{node['port']}" for node in nodes.options] == places
        assert nodes.queue == queue

    def test_all_nodes_have_the_same_user_password_database_and_options(self) -> None:
        url = "redlock://u:p%40ss@a,b,c/4?socket_timeout=0.2"
        for node in Nodes.of(url, {"client_name": "shop"}, 30).options:
            assert (node["username"], node["password"], node["db"]) == ("u", "p@ss", 4)
            assert (node["socket_timeout"], node["client_name"]) == (0.2, "shop")

    @pytest.mark.parametrize(("ttl", "patience"), [(30, 1.0), (2, 0.2), (0.5, 0.05)])
    def test_a_node_is_waited_for_as_long_as_a_lease_has(self, ttl: float, patience: float) -> None:
        options = BackendOptions(ttl=ttl, driver={})
        with closing(RedlockBackend.from_url("redlock://a,b,c", options)) as store:
            assert {node.timeout for node in store._pool().nodes} == {patience}
        told = Nodes.of("redlock://a,b,c", {"socket_timeout": 2}, ttl).options
        assert {node["socket_timeout"] for node in told} == {2}

    def test_it_promises_no_strict_fencing(self) -> None:
        conf: dict[str, Any] = {"dlock_url": "redlock://a,b,c"}
        assert RedlockBackend.guarantee is Guarantee.BEST_EFFORT
        wanted = [Trait.MULTI_PROCESS, Trait.MULTI_HOST, Trait.LEASE_PER_TASK]
        Settings.from_conf({**conf, "dlock_require": wanted}).check(RedlockBackend)
        for trait in (Trait.STRICT_FENCING, Trait.MONOTONE_FENCING):
            settings = Settings.from_conf({**conf, "dlock_require": {trait}})
            with pytest.raises(ConfigurationError, match=f"{trait}, which RedlockBackend lacks"):
                settings.check(RedlockBackend)


class TestEtcd:
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
        self, url: str, endpoints: tuple[str, ...], user: str | None, password: str
    ) -> None:
        address = etcd_address(url, {})
        assert (address.endpoints, address.user, address.password) == (endpoints, user, password)
        assert address.tls is None
        assert not password or password not in repr(address)

    def test_tls_takes_the_certificates_that_are_given(self, tmp_path: Path) -> None:
        names = {"ca_cert": "ca", "cert_cert": "cert", "cert_key": "key"}
        for file in names.values():
            (tmp_path / file).write_text(f"-----BEGIN {file}-----")
        for count in (0, 1, 3):
            given = {name: tmp_path / file for name, file in list(names.items())[:count]}
            read = [f"-----BEGIN {file}-----".encode() for file in names.values()][:count]
            tls = etcd_address("etcd+https://h", given).tls
            assert tls is not None
            assert [tls.ca, tls.cert, tls.key] == [*read, *[None] * (3 - count)]

    def test_an_answer_is_waited_for_five_seconds_unless_told_otherwise(self) -> None:
        assert etcd_address("etcd://h", {}).timeout == 5.0
        assert etcd_address("etcd://h", {"timeout": 1}).timeout == 1.0


class TestZooKeeper:
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
    def test_a_url_names_hosts_and_a_folder(self, url: str, hosts: str, chroot: str) -> None:
        address = zookeeper_address(url, BackendOptions(ttl=12.5))
        assert (address.hosts, address.chroot) == (hosts, chroot)
        assert (address.arguments["hosts"], address.arguments["timeout"]) == (hosts, 12.5)

    def test_a_user_is_the_only_one_who_may_use_what_it_makes(self) -> None:
        arguments = arguments_of("zookeeper://sh%40p:a%2Fb%3Ac@h")
        assert arguments["auth_data"] == [("digest", "sh@p:a/b:c")]
        assert arguments["default_acl"] == CREATOR_ALL_ACL
        assert "default_acl" not in arguments_of("zookeeper://h")

    def test_every_option_goes_to_the_driver(self) -> None:
        driver = dict.fromkeys(OPTIONS, False) | {"verify_certs": True}
        arguments = arguments_of("zookeeper://h", **driver)
        assert {name: arguments[name] for name in OPTIONS} == driver

    @pytest.mark.parametrize(
        ("driver", "checks"),
        [({}, True), ({"check_hostname": False}, False), ({"verify_certs": False}, False)],
    )
    def test_tls_checks_the_servers_name(self, driver: dict[str, Any], checks: bool) -> None:
        assert arguments_of("zookeeper://h", use_ssl=True, **driver)["check_hostname"] is checks

    def test_a_name_in_a_certificate_that_is_not_verified_says_nothing(self) -> None:
        with pytest.raises(ConfigurationError, match="verify_certs"):
            arguments_of("zookeeper://h", use_ssl=True, verify_certs=False, check_hostname=True)


def arguments_of(url: str, **driver: Any) -> dict[str, Any]:
    return dict(zookeeper_address(url, BackendOptions(driver=driver)).arguments)
