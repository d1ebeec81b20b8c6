"""How a run is dealt out to several processes, with ``--dist=loadscope`` of pytest-xdist.

Each test goes to whoever is free, the slow ones first. What shares a worker or a server of its
module goes together; so does the contract on one store, that its server starts once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]

#: Its module's fixture is another one for each parameter.
TOGETHER_BY_PARAMETER = "tests/workers/test_brokers.py"

#: Many short tests on the same two database servers.
TOGETHER = ("tests/fencing/", "tests/monitoring/test_history.py")

# On a machine with other things to do an example takes as long as it takes.
settings.register_profile(
    "parallel", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("parallel")


class Dealer(LoadScopeScheduling):  # type: ignore[misc]
    """What has the same scope is run by one process."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.startswith("tests/contract/") and "::" in test.partition("[")[0]:
            return f"{file}::{test.partition('::')[0]}"
        if file == TOGETHER_BY_PARAMETER and "[" in test:
            return f"{file} {test.partition('[')[2]}"
        if file.startswith(TOGETHER):
            return "databases"
        return file if _shares(file) else nodeid


@cache
def _shares(file: str) -> bool:
    return 'scope="module"' in (ROOT / file).read_text()


# Not --dist=loadgroup: pytest-xdist 3.8 does not see its groups under pytest 9.2
# (https://github.com/pytest-dev/pytest-xdist/issues/1386).
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Dealer:
    return Dealer(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
