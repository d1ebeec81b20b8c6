"""The contract is tested, too: it must fail on every store with a known defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from celery_dlock.stores.base import LockBackend
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing.contract import LockBackendContract
from tests.contract.defects import DEFECTS, IN_PACKAGE, Defect
from tests.services.planted import one_in_every_run

SUITE = """
import pytest
from tests.contract.suites import {contract}, Notes, Rules
from {module} import {name}

class Test(Rules, {contract}, Notes):
    backend_class = {name}

    @pytest.fixture
    def url(self, tmp_path):
        return f"{url}"
"""


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


ContractOn = Callable[..., Results]


@pytest.fixture
def contract_on(tmp_path: Path) -> ContractOn:
    """Runs the whole contract, with pytest itself, on a store kept in memory or in a file."""

    def run(store: type[LockBackend], test: str = "") -> Results:
        (tmp_path / "pytest.ini").touch()
        in_memory = store is MemoryBackend
        contract = "Storage" if in_memory else "SharedStorage"
        url = "memory://" if in_memory else "sqlite:///{tmp_path}/locks.db"
        names = {"module": store.__module__, "name": store.__name__}
        suite = tmp_path / f"test_{tmp_path.name}.py"  # of a name that nobody has imported
        suite.write_text(SUITE.format(contract=contract, url=url, **names))
        results = Results()
        # A folder of its own: pytest tidies up the common one, in which others are at work.
        # And no search for what was not raised: it collects all garbage of this process five times.
        needless = [f"-pno:{plugin}" for plugin in ("cacheprovider", "unraisableexception")]
        options = ["-q", "--tb=no", *needless, f"--basetemp={tmp_path / 'its'}"]
        pytest.main([f"{suite}::Test::{test}" if test else str(suite), *options], plugins=[results])
        return results

    return run


def test_a_sound_store_passes_the_contract(contract_on: ContractOn) -> None:
    results = contract_on(MemoryBackend)

    assert not results.failed
    assert len(results.passed) > 100


@pytest.mark.parametrize("defect", one_in_every_run(DEFECTS, "frees whoever holds"))
def test_a_broken_store_fails_the_contract(defect: Defect, contract_on: ContractOn) -> None:
    with defect.planted():
        results = contract_on(defect.store, defect.seen_by)

    assert results.failed, f"{defect.seen_by} does not see it"


@pytest.mark.parametrize("defect", IN_PACKAGE.values(), ids=IN_PACKAGE)
def test_a_writer_of_a_store_has_the_test_that_finds_it(defect: Defect) -> None:
    assert hasattr(LockBackendContract, defect.seen_by)
