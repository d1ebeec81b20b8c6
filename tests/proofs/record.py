"""On which stores each test ran, and whether a whole run has shown all that the lists name.

A store counts when it is opened in the test's process, when it is the one that a suite of the
contract or a row of the table of stores is about, and when the workers of the test are given its
URL.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest

from celery_dlock.registry import backend_class
from celery_dlock.stores.base import LockBackend
from tests.proofs.listed import contract, missing, promises
from tests.services.lab import Lab, used_urls
from tests.services.stores import Store

#: Stores by their class, and what their tests call them.
SCHEMES = {
    "MemoryBackend": "memory",
    "RowsBackend": "rows",
    "SqliteBackend": "sqlite",
    "PostgresqlBackend": "postgresql",
    "RedisBackend": "redis",
    "RedisSentinelBackend": "redis+sentinel",
    "RedisClusterBackend": "redis+cluster",
    "RedlockBackend": "redlock",
    "EtcdBackend": "etcd",
    "ZooKeeperBackend": "zookeeper",
}

#: The expressions of markers with which all is shown: planted defects show it of the tests.
WHOLE = {"", "not planted"}

_opened: set[str] = set()
_named: set[str] = set()

_shown: dict[str, set[str]] = defaultdict(set)
_skipped: set[str] = set()
_missing: list[str] = []


def scheme_of(store: type[LockBackend]) -> str:
    """The scheme of a store, or of the one that it is a variant of."""
    return next(SCHEMES[base.__name__] for base in store.__mro__ if base.__name__ in SCHEMES)


def pytest_configure() -> None:
    def new(cls: type[LockBackend], *_: Any, **__: Any) -> LockBackend:
        if any(base.__name__ in SCHEMES for base in cls.__mro__):
            _opened.add(scheme_of(cls))
        return object.__new__(cls)

    LockBackend.__new__ = new  # type: ignore[assignment, method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _opened.clear()
    _named.clear()
    used_urls.clear()
    suite = getattr(getattr(item, "cls", None), "backend_class", None)
    if suite is not None:
        _named.add(scheme_of(suite))
    params = item.callspec.params if hasattr(item, "callspec") else {}
    _named.update(value.scheme for value in params.values() if isinstance(value, Store))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "call":
        fixtures = getattr(item, "funcargs", {}).values()
        labs = [lab.config["celery"]["dlock_url"] for lab in fixtures if isinstance(lab, Lab)]
        urls = {*used_urls, *labs}  # a lab may be that of the whole module
        _named.update(scheme_of(backend_class(url)) for url in urls if url)
        # A Redlock has a Redis in it.
        opened = _opened - {"redis"} if "redlock" in _opened else _opened
        item.user_properties.append(("stores", " ".join(sorted(opened | _named))))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("::")[2].partition("[")[0]
    if report.skipped:
        _skipped.add(name)
    elif report.when == "call" and report.passed:
        _shown[name].update(str(dict(report.user_properties).get("stores", "")).split())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if is_whole(session.config) and exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
    ):
        waived = set() if os.environ.get("CI") == "true" else _skipped
        for proofs in (promises(), contract()):
            _missing.extend(missing(proofs, _shown, waived))
        if _missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def is_whole(config: pytest.Config) -> bool:
    """Whether all tests run, and this is the process that hears of all of them."""
    option = config.option
    some = (option.keyword, option.deselect, option.maxfail, option.collectonly)
    if any(some) or option.markexpr not in WHOLE or hasattr(config, "workerinput"):
        return False
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _missing:
        terminalreporter.section("not shown on a kind of store that the lists in tests/proofs name")
        for line in _missing:
            terminalreporter.line(line)
