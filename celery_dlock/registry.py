"""From names to objects: a store by its URL, a sink by its name; no driver of another is imported.

A third party adds a store by an entry point in the group ``celery_dlock.backends``: the scheme is
its name, the class its value. Nothing of a URL but its scheme ever goes into a message, because
URLs carry passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from celery_dlock.backends.base import BackendOptions, LockBackend
from celery_dlock.backends.helper import through_helper
from celery_dlock.core.checks import did_you_mean
from celery_dlock.errors import ConfigurationError

GROUP = "celery_dlock.backends"

#: Scheme to ``module:Class`` and the extra that brings its driver.
BACKENDS: Mapping[str, tuple[str, str | None]] = {
    "memory": ("celery_dlock.backends.memory:MemoryBackend", None),
    "sqlite": ("celery_dlock.backends.sqlite:SqliteBackend", None),
    "redis": ("celery_dlock.backends.redis:RedisBackend", "redis"),
    "rediss": ("celery_dlock.backends.redis:RedisBackend", "redis"),
    "redis+unix": ("celery_dlock.backends.redis:RedisBackend", "redis"),
    "zookeeper": ("celery_dlock.backends.zookeeper:ZooKeeperBackend", "zookeeper"),
    "redis+sentinel": ("celery_dlock.backends.redis_sentinel:RedisSentinelBackend", "redis"),
    "redis+cluster": ("celery_dlock.backends.redis_cluster:RedisClusterBackend", "redis"),
    "redlock": ("celery_dlock.backends.redlock:RedlockBackend", "redis"),
    "etcd": ("celery_dlock.backends.etcd:EtcdBackend", "etcd"),
    "etcd+https": ("celery_dlock.backends.etcd:EtcdBackend", "etcd"),
}

#: The exporters that ``dlock_sinks`` knows by name.
SINKS: Mapping[str, tuple[str, str]] = {
    "events": ("celery_dlock.monitoring.stream:EventStreamSink", ""),
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
        path, extra = BACKENDS[scheme]
        return _load(EntryPoint(scheme, path, GROUP), extra)
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme in others:
        return _load(others[scheme], None)
    hint = did_you_mean(scheme, [*BACKENDS, *others])
    raise ConfigurationError(f"no lock store answers to {scheme}://; {hint}")


def open_backend(url: str, options: BackendOptions, *, forking: bool = False) -> LockBackend:
    """The store at *url*, not connected yet. Raises as :func:`backend_class` does.

    A process that is *forking* as long as it lives has some stores used by a helper.
    """
    store = backend_class(url)
    if forking and not store.forks:
        return through_helper(store, url, options)
    return store.from_url(url, options)


def sink_named(name: str) -> Any:
    """The exporter of this name, or whatever its dotted path leads to.

    Raises :exc:`~celery_dlock.ConfigurationError`, with the command to run when what it needs is
    not installed.
    """
    path, extra = SINKS.get(name, (name, ""))
    return load_sink(path, extra, f"the sink {name!r}")


def load_sink(path: str, extra: str, what: str) -> Any:
    """What *path* names, which the extra *extra* brings; *what* it is, for errors."""
    module, _, attribute = path.rpartition(":" if ":" in path else ".")
    try:
        return EntryPoint("", f"{module}:{attribute}", "").load()
    except (ImportError, AttributeError) as exc:
        if not extra or isinstance(exc, AttributeError) or _ours(exc):
            raise ConfigurationError(f"{what} cannot be imported: {exc}") from exc
        raise ConfigurationError(f'{what} needs: pip install "celery-dlock[{extra}]"') from exc


def scheme_of(url: str) -> str:
    """The scheme of *url* in lower case."""
    match = _SCHEME.match(url)
    if match is None:
        raise ConfigurationError(
            "the URL of a lock store starts with its scheme, as in redis://localhost:6379/2 or "
            f"sqlite:///dlock.db; known: {', '.join(sorted(BACKENDS))}"
        )
    return match[1].lower()


def _load(entry: EntryPoint, extra: str | None) -> type[LockBackend]:
    try:
        found = entry.load()
    except (ImportError, AttributeError) as exc:
        if extra is None or isinstance(exc, AttributeError) or _ours(exc):
            what = f"{entry.value}, given for {entry.name}://"
            raise ConfigurationError(f"cannot import {what}: {exc}") from exc
        command = f'pip install "celery-dlock[{extra}]"'
        raise ConfigurationError(f"{entry.name}:// needs a driver: {command}") from exc
    if not isinstance(found, type) or not issubclass(found, LockBackend):
        raise ConfigurationError(f"{entry.value}, given for {entry.name}://, is no LockBackend")
    return found


def _ours(error: ImportError) -> bool:
    return (error.name or "").startswith("celery_dlock.")
