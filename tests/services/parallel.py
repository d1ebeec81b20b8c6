"""How a run is dealt out to several processes, with ``--dist=loadscope`` of pytest-xdist.

Each test goes to whoever is free, the slow ones first. What shares a worker or a server of its
module goes together; so does what shares a server that is several processes, or takes seconds to
start: it is started once, and not in each process.
"""

from __future__ import annotations

import fcntl
import gc
import re
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]

#: The module's fixture is another one for each parameter: this much of its name.
BY_PARAMETER = {
    "tests/faults/test_members.py": r"etcd|zookeeper",
    "tests/workers/test_brokers.py": r".+",
    "tests/workers/test_canvas_matrix.py": r"[^-]+",
    "tests/workers/test_every_store.py": r".+",
    "tests/workers/test_pools.py": r".+",
}

#: Many short tests on the same two database servers.
DATABASES = ("tests/fencing/", "tests/monitoring/test_history.py", "tests/contract/test_postgresql")

#: The fixture of a server, and what it is called in the names of parameters.
SERVERS = {
    "etcd_server": "etcd",
    "mariadb_server": "mariadb",
    "postgresql_server": "postgresql",
    "rabbitmq_server": "rabbitmq|quorum",
    "redis_cluster": r"redis\+cluster",
    "redis_nodes": "redlock",
    "redis_sentinel": r"redis\+sentinel",
    "zookeeper_server": "zookeeper",
}

#: What is called like these there has a server of its own.
OWN = (
    *("tests/beat/test_failover.py", "tests/beat/test_handover.py"),
    *("tests/chaos/", "tests/faults/test_members.py", "tests/model/"),
)

# On a machine with other things to do an example takes as long as it takes.
settings.register_profile(
    "parallel", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("parallel")


class Dealer(LoadScopeScheduling):  # type: ignore[misc]
    """What has the same scope is run by one process."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        function, _, row = test.partition("[")
        servers = set() if file.startswith(OWN) else _servers_in(row) or _servers_of(file)
        if file.startswith(DATABASES) or servers & {"mariadb_server", "postgresql_server"}:
            return "databases"
        if servers:
            return servers.pop() if len(servers) == 1 else "servers"
        if file in BY_PARAMETER and (found := re.match(BY_PARAMETER[file], row)):
            return f"{file} {found[0]}"
        if file.startswith("tests/contract/") and "::" in function:
            return f"{file}::{function.partition('::')[0]}"
        return file if _shares(file) else nodeid


def _servers_in(row: str) -> set[str]:
    """Whose names stand in a row of parameters."""
    return {
        server
        for server, names in SERVERS.items()
        if re.search(rf"(?<![^ -])({names})(?![^] -])", row)
    }


@cache
def _shares(file: str) -> bool:
    return 'scope="module"' in (ROOT / file).read_text()


def _servers_of(file: str) -> set[str]:
    """Whose fixtures a file names."""
    if file in BY_PARAMETER:
        return set()
    return {server for server in SERVERS if _names(file, server)}


@cache
def _names(file: str, server: str) -> bool:
    return re.search(rf"\b{server}\b", (ROOT / file).read_text()) is not None


# Not --dist=loadgroup: pytest-xdist 3.8 does not see its groups under pytest 9.2
# (https://github.com/pytest-dev/pytest-xdist/issues/1386).
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Dealer:
    return Dealer(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are no garbage: nothing looks at them while they are made, nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, object]:
    """Who comes first to a file that nobody has compiled does it, and the others wait for that."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
