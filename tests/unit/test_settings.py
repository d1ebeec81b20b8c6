"""Settings as an application gives them: on ``app.conf``, by a namespace, from Django."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_dlock.errors import ConfigurationError
from celery_dlock.monitoring.history_reader import HistoryReader
from celery_dlock.runtime import runtime
from celery_dlock.settings import HistoryOptions, Settings
from celery_dlock.stores.base import Copies, LockBackend, Trait
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.redis.cluster import RedisClusterBackend
from celery_dlock.stores.redis.sentinel import RedisSentinelBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend


def read(**conf: Any) -> Settings:
    """Settings of an application with *conf* and a URL."""
    app = Celery("shop", set_as_current=False)
    app.conf.update({"dlock_url": "memory://", **conf})
    return Settings.from_conf(app.conf)


def test_a_url_is_all_that_is_needed() -> None:
    assert read() == Settings(
        url="memory://",
        require=frozenset(),
        ttl=30.0,
        max_hold=None,
        key_prefix="dlock",
        done_ttl=None,
        fencing_epoch=0,
        backend_options={},
        sinks=(),
        history=None,
    )


def test_every_setting_is_read() -> None:
    given: dict[str, Any] = {
        "dlock_url": "sqlite:///x.db",
        "dlock_require": ["multi-process", Trait.DURABLE],
        "dlock_ttl": 5,
        "dlock_max_hold": 60,
        "dlock_key_prefix": "shop:locks",
        "dlock_done_ttl": 0,
        "dlock_fencing_epoch": 1023,
        "dlock_backend_options": {"timeout": 2},
        "dlock_sinks": ["shop.locks.count", print],
        "dlock_history": {"url": "sqlite:///history.db", "keep": 3600},
        "dlock_doctor_ignore": {"redis-aof": "locks only"},
    }

    assert read(**given) == Settings(
        url="sqlite:///x.db",
        require=frozenset({Trait.MULTI_PROCESS, Trait.DURABLE}),
        ttl=5.0,
        max_hold=60.0,
        key_prefix="shop:locks",
        done_ttl=0.0,
        fencing_epoch=1023,
        backend_options={"timeout": 2},
        sinks=("shop.locks.count", print),
        history=HistoryOptions("sqlite:///history.db", 3600.0),
        doctor_ignore={"redis-aof": "locks only"},
    )


def test_none_means_the_default() -> None:
    assert read(dlock_ttl=None, dlock_max_hold=None) == read()


def test_settings_are_read_from_a_configuration_nobody_has_looked_at_yet() -> None:
    app = Celery("shop", set_as_current=False)
    conf = app.conf  # still pending: reading it would load it
    app.config_from_object(SimpleNamespace(CELERY_DLOCK_URL="memory://"), namespace="CELERY")

    assert Settings.from_conf(conf).url == "memory://"


def test_settings_are_read_from_a_plain_mapping() -> None:
    assert Settings.from_conf({"dlock_url": "memory://", "dlock_ttl": 3}).ttl == 3.0


@pytest.mark.parametrize(
    ("namespace", "keys"),
    [
        ("CELERY", {"CELERY_DLOCK_URL": "memory://", "CELERY_DLOCK_TTL": 9}),
        ("CELERY_", {"CELERY_DLOCK_URL": "memory://", "CELERY_DLOCK_TTL": 9}),
        ("celery", {"celery_dlock_url": "memory://", "celery_dlock_ttl": 9}),
        ("CELERY", {"CELERY_DLOCK_URL": "memory://", "dlock_ttl": 9}),
        (None, {"dlock_url": "memory://", "dlock_ttl": 9}),
    ],
)
def test_settings_are_read_under_a_namespace(namespace: str | None, keys: dict[str, Any]) -> None:
    assert Settings.from_conf(app_of(namespace, **keys).conf).ttl == 9.0


def test_a_missing_url_is_named_with_a_store_that_needs_nothing() -> None:
    with pytest.raises(ConfigurationError, match=r"dlock_url .*sqlite:///dlock\.db") as caught:
        Settings.from_conf(Celery("shop", set_as_current=False).conf)

    assert "single machine" in str(caught.value)


@pytest.mark.parametrize(
    ("namespace", "key", "meant"),
    [
        (None, "dlock_tll", "dlock_ttl"),
        (None, "DLOCK_REQUIRE", "dlock_require"),
        ("CELERY", "CELERY_DLOCK_TLL", "CELERY_DLOCK_TTL"),
        ("CELERY", "CELERY_dlock_ttl", "CELERY_DLOCK_TTL"),
        ("CELERY", "dlock_tll", "CELERY_DLOCK_TTL"),
        ("CELERY", "DLOCK_TTL", "CELERY_DLOCK_TTL"),
        ("celery", "celery_dlock_tll", "celery_dlock_ttl"),
    ],
)
def test_an_unknown_setting_names_the_nearest(namespace: str | None, key: str, meant: str) -> None:
    app = app_of(namespace, **{key: 3})
    app.conf.dlock_url = "memory://"

    with pytest.raises(ConfigurationError, match=f"{key}; did you mean '{meant}'"):
        Settings.from_conf(app.conf)


@pytest.mark.parametrize("key", ["dlock_on_lost", "dlock_unique"])
def test_one_like_no_setting_is_led_to_all_of_them_and_to_the_options_of_tasks(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}; known: .*dlock_ttl.*base class has it"):
        read(**{key: "done"})


@pytest.mark.parametrize(("main", "named"), [("shop", "shop"), (None, "__main__")])
@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"dlock_url": "memory://", "dlock_tll": 3},
        {"dlock_url": "rediss+nothing://"},
        {"dlock_url": "memory://", "dlock_require": ["durable"]},
        {"dlock_url": "memory://", "dlock_sinks": ["nowhere.to.count"]},
        {"dlock_url": "memory://", "dlock_history": 3},
    ],
)
def test_an_error_names_the_application(main: str | None, named: str, conf: dict[str, Any]) -> None:
    app = Celery(main, set_as_current=False)
    app.conf.update(conf)

    with pytest.raises(ConfigurationError, match=f"^Celery app '{named}': [^:]") as caught:
        runtime(app)
    assert str(caught.value).count("Celery app") == 1


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({"dlock_url": "sqlite:///x.db"}, "dlock_history is not set"),
        ({"dlock_history": "sqlite:///x.db"}, "dlock_url is not set"),
    ],
)
def test_an_error_about_the_history_names_the_application(conf: dict[str, Any], what: str) -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)

    with pytest.raises(ConfigurationError, match=f"^Celery app 'shop': {what}"):
        HistoryReader.from_app(app)


def test_a_constant_that_feeds_a_setting_is_no_misspelling() -> None:
    app = app_of(None, DLOCK_URL="memory://", dlock_url="memory://", DLOCK_HOSTS=["a"])

    assert Settings.from_conf(app.conf).url == "memory://"


def app_of(namespace: str | None, **keys: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.config_from_object(SimpleNamespace(**keys), namespace=namespace)
    return app


KEPT = ({"kept": 3}, {"keep": 0})
NAN, INFINITE = float("nan"), float("inf")
WRONG: dict[str, list[Any]] = {
    "url": [42, ""],
    "require": ["durable", 3],
    "ttl": [0, -1, "30", True, NAN, INFINITE, 10**400],
    "max_hold": [0],
    "key_prefix": ["", "a b", "{a}", 3],
    "done_ttl": [-1],
    "fencing_epoch": [-1, 1024, 1.0, True],
    "backend_options": [["timeout"]],
    "sinks": ["shop.locks.count", ["count"], ["promtheus"], [3], [[]]],
    "history": [3, "history.db", {}, *({"url": "sqlite://", **more} for more in KEPT)],
    "doctor_ignore": [["redis-aof"], {"redis-aof": True}, {"redis-aof": " "}, {3: "why"}],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_its_setting(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(ConfigurationError, match=f"^dlock_{name}"):
            read(**{f"dlock_{name}": value})


def test_an_unknown_trait_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="'multihost'; did you mean 'multi-host'"):
        read(dlock_require=["multihost"])


def test_a_store_that_lacks_a_required_trait_is_refused_with_what_it_has() -> None:
    settings = read(dlock_require=["durable", "strict-fencing"])

    with pytest.raises(ConfigurationError, match="durable, which MemoryBackend lacks") as caught:
        settings.check(MemoryBackend)

    assert "it has lease-per-task, monotone-fencing, strict-fencing" in str(caught.value)


def test_a_store_is_built_with_the_prefix_and_the_options_of_its_driver() -> None:
    options = read(dlock_key_prefix="shop", dlock_backend_options={"timeout": 2}).options

    assert (options.prefix, options.driver) == ("shop", {"timeout": 2})


def test_the_url_stays_out_of_the_printed_form() -> None:
    settings = read(dlock_url="redis://:s3cret@h", dlock_backend_options={"password": "s3cret"})

    assert "s3cret" not in repr(settings)


def test_the_name_of_a_broker_has_no_password() -> None:
    assert read(dlock_broker="redis://h:6379/0").broker == "redis://h:6379/0"
    assert read(dlock_broker="shop@night").broker == "shop@night"
    with pytest.raises(ConfigurationError, match="leave out user and password") as refused:
        read(dlock_broker="redis://:secret@h")
    assert "secret" not in str(refused.value)


def waiting_for(value: Any) -> Settings:
    return read(dlock_url="redis://h", dlock_wait_replicas=value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (2, Copies(2)),
        ({"replicas": 1}, Copies(1)),
        ({"replicas": 2, "timeout": 0.5}, Copies(2, timeout=0.5)),
    ],
)
def test_it_says_where_a_hold_has_to_be(value: Any, expected: Copies | None) -> None:
    assert waiting_for(value).options.copies == expected


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, True, "1", 1.0),
        *({}, {"replicas": 0}, {"replica": 1}, {"replicas": 1, "aof": True}),
        *({"replicas": 1, "timeout": 0}, {"replicas": 1, "timeout": "soon"}),
    ],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="dlock_wait_replicas"):
        waiting_for(value)


@pytest.mark.parametrize("store", [RedisBackend, RedisSentinelBackend, RedisClusterBackend])
def test_stores_with_replicas_take_it(store: type[LockBackend]) -> None:
    waiting_for(1).check(store)


@pytest.mark.parametrize("store", [MemoryBackend, SqliteBackend])
def test_stores_without_replicas_are_refused(store: type[LockBackend]) -> None:
    with pytest.raises(ConfigurationError, match="dlock_wait_replicas is for replicas of Redis"):
        waiting_for(1).check(store)
    waiting_for(None).check(store)
