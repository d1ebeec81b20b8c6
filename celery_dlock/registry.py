"""From a store's URL to its class, without importing the drivers of the others.

A third party adds a store by an entry point in the group ``celery_dlock.backends``: the scheme is
its name, the class its value. Nothing of a URL but its scheme ever goes into a message, because
URLs carry passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from celery_dlock.backends.base import BackendOptions, LockBackend
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
}

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


def open_backend(url: str, options: BackendOptions) -> LockBackend:
    """The store at *url*, not connected yet. Raises as :func:`backend_class` does."""
    return backend_class(url).from_url(url, options)


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
