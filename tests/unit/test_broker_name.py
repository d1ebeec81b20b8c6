"""What a broker is called: however its address is spelt the same, and no other broker so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport import _transport_cache, virtual

from celery_dlock import ConfigurationError
from celery_dlock.messages.broker_name import broker_name

Url = str | list[str]


def name(url: Url, **options: Any) -> str:
    """With these transport options."""
    app = Celery(broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    with app.connection_for_write() as connection:
        return broker_name(connection)


SENTINELS = {"master_name": "one"}

#: Each line is one broker.
PLAIN: list[list[Url]] = [
    [
        *("redis://h", "redis://h/", "redis://h//", "redis://h/0", "redis://h:6379//0"),
        *("rediss://H:6379/00", "redis://secret:secret@h", "redis://:secret@h:6379/0"),
    ],
    [
        *("redis://", "redis://localhost/0", "redis://LOCALHOST:6379", "redis://127.0.0.1"),
        *("redis://[::1]", "redis://[0:0:0:0:0:0:0:1]:6379/0"),
    ],
    ["redis://[fe80::1]/1", "redis://[FE80:0:0:0:0:0:0:1]:6379/1"],
    ["redis+socket:///a.sock", "redis+socket://:secret@/a.sock?virtual_host=0"],
    ["redis+socket:///a.sock?virtual_host=3", "redis+socket:///a.sock?virtual_host=/3"],
    [
        *("amqp://h", "amqp://h/", "amqp://h//", "amqp://secret:secret@h:5672/%2F"),
        "pyamqp://h:5672//",
    ],
    ["amqp://h/shop", "pyamqp://secret:secret@H:5672/shop"],
    ["amqp://h//shop", "amqp://h/%2Fshop"],
    ["amqps://h", "amqps://h:5671//"],
    [
        *("amqp://a;amqp://b", "amqp://b;amqp://a", "amqp://a;amqp://b;amqp://a"),
        *(["amqp://secret:secret@b:5672//", "amqp://a"], "amqp://a:5672;b"),
    ],
    ["redis://a:1;redis://b:2/0", "redis://b:2;redis://a:1"],
    ["zookeeper://h", "zookeeper://h:2181//"],
    ["zookeeper://h/shop", "zookeeper://h:2181//shop/"],
    ["sqla+sqlite:///a.db", f"sqlalchemy+sqlite:///{Path('a.db').resolve()}"],
    [
        *("sqla+postgresql://h/db", "sqla+postgresql+psycopg://secret:secret@H:5432/db"),
        "sqla+postgresql://secret:se/secret?x@h/db",
        "sqlalchemy+postgresql://h/db?password=a@secret",
    ],
    ["sqla+mysql://h/db", "sqla+mariadb+pymysql://secret:secret@h:3306/db"],
    [
        "sqla+postgresql:///db?host=/run/a",
        "sqla+postgresql://secret@/db?host=/run/a&password=secret",
    ],
    [
        *("mongodb://h", "mongodb://secret:secret@h:27017/kombu_default?authSource=x"),
        "mongodb://H/?password=a@secret",
    ],
    ["mongodb://a,b:1/db", "mongodb://secret:secret@b:1,a:27017/db"],
    ["mongodb+srv://h/db", "mongodb+srv://secret:secret@h/db"],
    [
        "azureservicebus://secret:a/k?secret@y=@shop",
        "azureservicebus://other:secret@shop.servicebus.windows.net",
    ],
    [
        "azurestoragequeues://a/secret=@https://shop.queue",
        "azurestoragequeues://secret@https://shop.queue",
    ],
    ["gcpubsub://projects/shop", "gcpubsub://projects/shop/"],
    ["sqs://", "sqs://secret:secret@"],
    ["sqs://secret:secret@localhost:4566", "sqs://127.0.0.1:4566"],
]
#: The same of those whose transport options tell them apart.
SPELLINGS: list[tuple[dict[str, Any], list[Url]]] = [
    *(({}, urls) for urls in PLAIN),
    (
        SENTINELS,
        [
            *("sentinel://a;sentinel://b:26380", "sentinel://b:26380;sentinel://:secret@a:26379"),
            "sentinel://b:26380/0;sentinel://a",
        ],
    ),
    (
        SENTINELS,
        ["sentinel://a", "sentinel://a:26379/0", "sentinel://:secret@a:26379;sentinel://a"],
    ),
    ({"region": "eu-west-3"}, ["sqs://", "sqs://secret:secret@"]),
    ({"global_keyprefix": "a"}, ["redis://h", "redis://h:6379/0"]),
    ({"global_keyprefix": "b"}, ["redis://h", "redis://h:6379/0"]),
    ({"queue_name_prefix": "a"}, ["sqs://", "sqs://secret:secret@"]),
    ({"master_name": "two"}, ["sentinel://a", "sentinel://a:26379/0"]),
    ({"queue_tablename": "a"}, ["sqla+sqlite:///a.db"]),
]


class Alone(virtual.Transport):
    """A transport whose library is not installed here, as far as it says where it leads."""


@pytest.fixture(autouse=True, scope="module")
def all_transports() -> Iterator[None]:
    """As far as names go; boto3 knows of no region here."""
    with pytest.MonkeyPatch.context() as patch:
        for scheme, reads_urls, driver in (
            ("mongodb", True, "mongodb"),
            ("azureservicebus", True, "N/A"),
            ("azurestoragequeues", True, "N/A"),
            ("gcpubsub", True, "gcpubsub"),
            ("sqs", False, "sqs"),
            ("pgmq", False, "pgmq"),
        ):
            made = {"can_parse_url": reads_urls, "driver_type": driver}
            if scheme == "sqs":
                made["default_connection_params"] = {"port": None}
            patch.setitem(_transport_cache, scheme, type(scheme, (Alone,), made))
        boto3 = SimpleNamespace(Session=lambda: SimpleNamespace(region_name=None))
        patch.setitem(sys.modules, "boto3", boto3)
        yield


@pytest.mark.parametrize(("options", "urls"), SPELLINGS)
def test_a_broker_has_one_name_in_any_spelling(options: dict[str, Any], urls: list[Url]) -> None:
    assert len({name(url, **options) for url in urls}) == 1


def test_no_two_brokers_have_the_same_name() -> None:
    names = [name(urls[0], **options) for options, urls in SPELLINGS]
    assert len(set(names)) == len(SPELLINGS)


def test_no_name_has_a_user_or_a_password() -> None:
    assert not [
        url for options, urls in SPELLINGS for url in urls if "secret" in name(url, **options)
    ]


def test_a_folder_is_one_however_one_comes_to_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    one = name("filesystem://", data_folder_in="x", data_folder_out=str(tmp_path / "a"))
    assert name("filesystem://", data_folder_out=f"{tmp_path}/./link/") == one
    assert name("filesystem://", data_folder_out=f"{tmp_path}/b") != one
    assert name("filesystem://") == name("filesystem://", data_folder_out="data_out")


def test_a_setting_that_hides_the_broker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="dlock_broker"):
        name("pgmq://", conn_string="postgresql://u:secret@h/db")


@pytest.mark.parametrize(
    "url", ["sqla+postgresql://u:secret@h:port/db", "mongodb://u:12/secret@h", "mongodb://h:secret"]
)
def test_a_url_that_cannot_be_read_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        name(url)
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__


HOSTS = st.sampled_from(["a", "b", "a.b", "localhost", "::1", "fe80::2", "10.0.0.1", "a,b", "a/1"])
PLACES = st.tuples(HOSTS, st.sampled_from([6379, 1, 2]), st.sampled_from([0, 1, 12]))
BROKERS = st.tuples(
    st.lists(PLACES, min_size=1, max_size=3, unique=True), st.sampled_from(["", "a", "a&b=c", "?"])
)
Broker = tuple[list[tuple[str, int, int]], str]


def spelt(broker: Broker, data: st.DataObject) -> str:
    """One of the many ways to write it down."""
    places, prefix = broker
    urls = [_spelt_place(*place, data) for place in data.draw(st.permutations(places))]
    return name(
        urls, **({"global_keyprefix": prefix} if prefix or data.draw(st.booleans()) else {})
    )


def _spelt_place(host: str, port: int, database: int, data: st.DataObject) -> str:
    if host == "localhost":
        host = data.draw(st.sampled_from(["localhost", "127.0.0.1", "[::1]", "LocalHost"]))
    elif ":" in host:
        host = f"[{host}]"
    else:
        host = host.replace("/", "%2F").replace(",", "%2C")
    user = data.draw(st.sampled_from(["", "u@", ":p@", "u:p@"]))
    scheme = data.draw(st.sampled_from(["redis", "rediss"]))
    slashes = data.draw(st.sampled_from(["/", "//"]))
    return f"{scheme}://{user}{host}:{port}{slashes}{database}"


def same(broker: Broker) -> tuple[frozenset[tuple[str, int, int]], str]:
    places, prefix = broker
    loopback = {"::1": "localhost"}
    return frozenset((loopback.get(h, h), port, db) for h, port, db in places), prefix


@given(BROKERS, BROKERS, st.data())
def test_two_spellings_have_one_name_if_and_only_if_they_are_of_one_broker(
    one: Broker, other: Broker, data: st.DataObject
) -> None:
    assert spelt(one, data) == spelt(one, data)
    assert (spelt(one, data) == spelt(other, data)) == (same(one) == same(other))
