"""The contract is tested, too: it must fail on every store with a known defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from celery_dlock.backends.base import LockBackend, Trait
from celery_dlock.backends.memory import MemoryBackend
from celery_dlock.testing import LockBackendContract, SharedStoreContract
from tests.contract import (  # noqa: F401  (their stores are found as subclasses of Broken)
    broken_keeping,
    broken_queues,
    broken_waiting,
)
from tests.contract.broken import Broken
from tests.contract.broken_upkeep import KeepsItsDeadToItself

SUITE = """
import pytest
from celery_dlock.testing import {contract}
from {module} import {name}

class Test({contract}):
    backend_class = {name}

    @pytest.fixture
    def url(self, tmp_path):
        return f"{url}"
"""

STORES: list[type[LockBackend]] = [*Broken.__subclasses__(), KeepsItsDeadToItself]


@dataclass
class Results:
    """A plugin that notes which tests of a run passed and failed."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.failed:
            self.failed.add(name)
        elif report.when == "call":
            self.passed.add(name)


@pytest.fixture
def contract_on(tmp_path: Path) -> Callable[[type[LockBackend]], Results]:
    """Runs the whole contract, with pytest itself, on a store kept in memory or in a file."""

    def run(store: type[LockBackend]) -> Results:
        (tmp_path / "pytest.ini").touch()
        suite = tmp_path / f"test_{store.__name__.lower()}.py"
        contract, url = LockBackendContract, "memory://"
        if Trait.MULTI_PROCESS in store.traits:
            contract, url = SharedStoreContract, "sqlite:///{tmp_path}/locks.db"
        words = {"module": store.__module__, "name": store.__name__}
        suite.write_text(SUITE.format(contract=contract.__name__, url=url, **words))
        results = Results()
        pytest.main([str(suite), "-q", "--tb=no", "-p", "no:cacheprovider"], plugins=[results])
        return results

    return run


def test_a_sound_store_passes_the_contract(
    contract_on: Callable[[type[LockBackend]], Results],
) -> None:
    results = contract_on(MemoryBackend)

    assert not results.failed
    assert len(results.passed) > 100


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.__name__)
def test_a_broken_store_fails_the_contract(
    store: type[LockBackend],
    contract_on: Callable[[type[LockBackend]], Results],
    record_property: Callable[[str, object], None],
) -> None:
    results = contract_on(store)

    caught_by = sorted(results.failed)
    assert caught_by, f"no test of the contract notices {store.__name__}"
    record_property("broken store", f"{store.__name__}: {len(caught_by)}, {caught_by[0]}")
    assert results.passed, "everything fails, so this store is not broken but out of order"
