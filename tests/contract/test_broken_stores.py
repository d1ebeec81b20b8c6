"""The contract is tested, too: it must fail on every store with a known defect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tests.contract.broken_waiting  # noqa: F401  (its stores are found as subclasses)
from celery_dlock.backends.base import LockBackend
from celery_dlock.backends.memory import MemoryBackend
from tests.contract import broken_queues  # noqa: F401  (more subclasses of Broken)
from tests.contract.broken import Broken

SUITE = """
import pytest
from celery_dlock.testing import LockBackendContract
from {module} import {name}

class Test(LockBackendContract):
    backend_class = {name}

    @pytest.fixture
    def url(self):
        return "memory://"
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


@pytest.fixture
def contract_on(tmp_path: Path) -> Callable[[type[LockBackend]], Results]:
    """Runs the whole contract, with pytest itself, on a store kept in memory."""

    def run(store: type[LockBackend]) -> Results:
        (tmp_path / "pytest.ini").touch()
        suite = tmp_path / f"test_{store.__name__.lower()}.py"
        suite.write_text(SUITE.format(module=store.__module__, name=store.__name__))
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
@pytest.mark.parametrize("store", Broken.__subclasses__(), ids=lambda store: store.__name__)
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
