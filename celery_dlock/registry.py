"""From names to objects: a store by its URL, a sink by its name; no driver of another is imported.

A third party adds a store by an entry point in the group ``celery_dlock.backends``: the scheme is
its name, the class its value. Nothing of a URL but its scheme ever goes into a message, because
URLs carry passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from celery_dlock.core.checks import did_you_mean, quoted
from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions, LockBackend

GROUP = "celery_dlock.backends"

_DOCTOR = "celery_dlock.ops.doctor"


class Provided(NamedTuple):
    """A store of this package: its class, the extra for its driver, what the doctor has for it.

    Both are ``module:name``, and imported when they are needed, for they need drivers.
    """

    backend: str
    extra: str | None
    checks: str


_REDIS = Provided(
    "celery_dlock.stores.redis.store:RedisBackend", "redis", f"{_DOCTOR}.redis:examine_redis"
)
_ETCD = Provided(
    "celery_dlock.stores.etcd.store:EtcdBackend", "etcd", f"{_DOCTOR}.etcd:examine_etcd"
)

#: The stores by the schemes of their URLs.
BACKENDS: Mapping[str, Provided] = {
    "memory": Provided(
        "celery_dlock.stores.memory:MemoryBackend", None, f"{_DOCTOR}.local:examine_memory"
    ),
    "sqlite": Provided(
        "celery_dlock.stores.sql.sqlite:SqliteBackend", None, f"{_DOCTOR}.local:examine_sqlite"
    ),
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "redis+unix": _REDIS,
    "redis+sentinel": Provided(
        "celery_dlock.stores.redis.sentinel:RedisSentinelBackend",
        "redis",
        f"{_DOCTOR}.redis:examine_sentinel",
    ),
    "redis+cluster": Provided(
        "celery_dlock.stores.redis.cluster:RedisClusterBackend",
        "redis",
        f"{_DOCTOR}.redis:examine_cluster",
    ),
    "redlock": Provided(
        "celery_dlock.stores.redlock.store:RedlockBackend",
        "redis",
        f"{_DOCTOR}.redlock:examine_redlock",
    ),
    "zookeeper": Provided(
        "celery_dlock.stores.zookeeper.store:ZooKeeperBackend",
        "zookeeper",
        f"{_DOCTOR}.zookeeper:examine_zookeeper",
    ),
    "etcd": _ETCD,
    "etcd+https": _ETCD,
    "postgresql": Provided(
        "celery_dlock.stores.postgresql.store:PostgresqlBackend",
        "postgresql",
        f"{_DOCTOR}.postgresql:examine_postgresql",
    ),
    "django": Provided(
        "celery_dlock.django.store:DjangoBackend",
        "postgresql",
        f"{_DOCTOR}.postgresql:examine_django",
    ),
}

#: The exporters that ``dlock_sinks`` knows by name.
SINKS: Mapping[str, tuple[str, str | None]] = {
    "events": ("celery_dlock.monitoring.stream:EventStreamSink", None),
    "opentelemetry": ("celery_dlock.monitoring.otel:OpenTelemetrySink", "opentelemetry"),
    "prometheus": ("celery_dlock.monitoring.prometheus:PrometheusSink", "prometheus"),
    "statsd": ("celery_dlock.monitoring.statsd:StatsdSink", "statsd"),
}
HISTORY = ("celery_dlock.monitoring.history:HistorySink", "history")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def backend_class(url: str) -> type[LockBackend]:
    """The class for the scheme of *url*.

    Raises :exc:`~celery_dlock.ConfigurationError` for a scheme that nobody provides, and with the
    command to run when the driver is not installed.
    """
    scheme = scheme_of(url)
    if scheme in BACKENDS:
        path, extra, _ = BACKENDS[scheme]
    else:
        others = {entry.name: entry.value for entry in entry_points(group=GROUP)}
        if scheme not in others:
            hint = did_you_mean(scheme, [*BACKENDS, *others])
            raise ConfigurationError(f"no lock store answers to {scheme}://; {hint}")
        path, extra = others[scheme], None
    found = load(path, extra, f"{scheme}://")
    if not isinstance(found, type) or not issubclass(found, LockBackend):
        raise ConfigurationError(f"{path}, given for {scheme}://, is no LockBackend")
    return found


def open_backend(url: str, options: BackendOptions, *, forking: bool = False) -> LockBackend:
    """The store at *url*, not connected yet. Raises as :func:`backend_class` does.

    A process that is *forking* as long as it lives has some stores used by a helper.
    """
    store = backend_class(url)
    if forking and not store.forks:
        from celery_dlock.stores.subprocess import through_helper

        return through_helper(store, url, options)
    return store.from_url(url, options)


def sink_named(name: str) -> Any:
    """The exporter of this name, or whatever its dotted path leads to.

    Raises :exc:`~celery_dlock.ConfigurationError`, with the command to run when what it needs is
    not installed.
    """
    path, extra = SINKS.get(name, (name, None))
    return load(path, extra, f"the sink {quoted(name)}")


def load(path: str, extra: str | None, what: str) -> Any:
    """What *path* names, which the extra *extra* brings; *what* it is, for errors."""
    module, _, attribute = path.rpartition(":" if ":" in path else ".")
    try:
        return EntryPoint("", f"{module}:{attribute}", "").load()
    except (ImportError, AttributeError) as exc:
        ours = isinstance(exc, AttributeError) or (exc.name or "").startswith("celery_dlock.")
        if not extra or ours:
            raise ConfigurationError(f"{what} cannot be imported from {path}: {exc}") from exc
        command = f'pip install "celery-dlock[{extra}]"'
        raise ConfigurationError(f"{what} needs: {command} ({exc})") from exc


def scheme_of(url: str) -> str:
    """The scheme of *url* in lower case."""
    match = _SCHEME.match(url)
    if match is None:
        raise ConfigurationError(
            "the URL of a lock store starts with its scheme, as in redis://localhost:6379/2 or "
            f"sqlite:///dlock.db; known: {', '.join(sorted(BACKENDS))}"
        )
    return match[1].lower()
