"""The contract is tested, too: it must fail on every store with a known defect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.stores.base import LockBackend, Trait
from celery_dlock.stores.memory import MemoryBackend
from tests.contract import (  # noqa: F401  (their stores are found as subclasses of Broken)
    broken_keeping,
    broken_listing,
    broken_newest,
    broken_notes,
    broken_queues,
    broken_swaps,
    broken_turns,
    broken_waiting,
)
from tests.contract.broken import Broken
from tests.contract.broken_notes import KeepsItsNotesToItself, TakesItsNotesAlong
from tests.contract.broken_upkeep import KeepsItsDeadToItself
from tests.contract.suites import SharedStorage, Storage
from tests.services.planted import one_in_every_run

SUITE = """
import pytest
from tests.contract.suites import {contract}, Notes, Rules
from {module} import {name}

class Test(Rules, {contract}, Notes):
    backend_class = {name}

    @pytest.fixture
    def url(self{fixture}):
        return f"{url}"
"""


def _with_defect(store: type[Broken]) -> Iterator[type[Broken]]:
    """The subclasses of *store* that are named; others are what several of them share."""
    for sub in store.__subclasses__():
        if not sub.__name__.startswith("_"):
            yield sub
        yield from _with_defect(sub)


IN_A_FILE = (KeepsItsDeadToItself, KeepsItsNotesToItself, TakesItsNotesAlong)
STORES: list[Any] = [*_with_defect(Broken), *IN_A_FILE]


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
def contract_on(tmp_path: Path) -> Callable[..., Results]:
    """Runs the whole contract, with pytest itself, on a store kept in memory or in a file."""

    def run(store: type[LockBackend], test: str = "") -> Results:
        (tmp_path / "pytest.ini").touch()
        suite = tmp_path / f"test_{store.__name__.lower()}.py"
        contract, fixture, url = Storage, "", "memory://"
        if Trait.MULTI_PROCESS in store.traits:
            contract, fixture = SharedStorage, ", tmp_path"
            url = "sqlite:///{tmp_path}/locks.db"
        words = {"module": store.__module__, "name": store.__name__, "fixture": fixture}
        suite.write_text(SUITE.format(contract=contract.__name__, url=url, **words))
        results = Results()
        # A folder of its own: pytest tidies up the common one, in which others are at work.
        # And no search for what was not raised: it collects all garbage of this process five times.
        needless = [f"-pno:{plugin}" for plugin in ("cacheprovider", "unraisableexception")]
        options = ["-q", "--tb=no", *needless, f"--basetemp={tmp_path / 'its'}"]
        pytest.main([f"{suite}::Test::{test}" if test else str(suite), *options], plugins=[results])
        return results

    return run


def test_a_sound_store_passes_the_contract(
    contract_on: Callable[..., Results],
) -> None:
    results = contract_on(MemoryBackend)

    assert not results.failed
    assert len(results.passed) > 100


@pytest.mark.parametrize(
    "store",
    one_in_every_run({store.__name__: store for store in STORES}, "FreesWhoeverHolds"),
)
def test_a_broken_store_fails_the_contract(
    store: type[Broken], contract_on: Callable[..., Results]
) -> None:
    results = contract_on(store, store.noticed_by)

    assert results.failed, f"{store.noticed_by} does not notice {store.__name__}"
