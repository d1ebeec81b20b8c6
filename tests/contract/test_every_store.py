"""No store without its proofs: whoever registers one has to run the contract and the queue on it.

The contract is a class that each store's tests inherit; what runs with workers or at the desk
takes its stores from the table in ``tests/services/stores.py``.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.registry import BACKENDS, backend_class
from celery_dlock.stores.base import LockBackend, NoteStore, Trait
from celery_dlock.testing import LockBackendContract
from tests.contract.suites import Notes, Rules, SharedStorage, Storage
from tests.services.programs import PROGRAMS
from tests.services.stores import EVERY, SHARED, STORES, Store

HERE = Path(__file__).parent

#: What the queue promises, as far as it needs no worker: files in ``tests/workers``.
AT_THE_DESK = (
    *("ordered", "ordered_canvas", "ordered_refused", "revoking", "retries_reserved"),
    *("queue_several_keys", "keeping", "dead", "parked_state", "giving_up"),
    "several_limits",
)


def store_of(scheme: str) -> type[LockBackend]:
    return backend_class(f"{scheme}://")


def suites() -> dict[type[LockBackend], list[type[LockBackendContract]]]:
    """The test classes in this folder that run the contract, by their store."""
    for file in HERE.glob("test_*.py"):
        importlib.import_module(f"tests.contract.{file.stem}")
    found: dict[type[LockBackend], list[type[LockBackendContract]]] = {}
    classes = [LockBackendContract]
    while classes:
        suite = classes.pop()
        classes += suite.__subclasses__()
        if suite.__module__.startswith("tests.contract.") and suite.__name__.startswith("Test"):
            found.setdefault(suite.backend_class, []).append(suite)
    return found


def proofs_of(suite: type[object]) -> dict[str, object]:
    return {name: value for name, value in inspect.getmembers(suite) if name.startswith("test_")}


def left_out(suite: type[LockBackendContract]) -> set[str]:
    module = importlib.import_module(suite.__module__)
    marks = [*getattr(suite, "pytestmark", []), *_listed(getattr(module, "pytestmark", []))]
    return {mark.name for mark in marks} & {"skip", "skipif", "xfail"}


def _listed(marks: Any) -> list[Any]:
    return marks if isinstance(marks, list) else [marks]


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
def test_every_registered_store_has_the_whole_contract_run_on_it(scheme: str) -> None:
    store = store_of(scheme)
    assert store in suites(), f"add a test class for {store} in {HERE}"
    shared = Trait.MULTI_PROCESS in store.traits
    contract = proofs_of(Rules) | proofs_of(SharedStorage if shared else Storage)
    if issubclass(store, NoteStore):
        contract |= proofs_of(Notes)

    for suite in suites()[store]:
        mine = proofs_of(suite)
        missing = {name for name, test in contract.items() if mine.get(name) is not test}
        assert not missing, f"{suite.__name__} has its own, or none: {sorted(missing)}"
        assert not left_out(suite), f"{suite.__name__} is not run everywhere"


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
def test_every_registered_store_is_in_the_table_of_the_other_tests(scheme: str) -> None:
    assert store_of(scheme) in {store.backend for store in STORES}, (
        f"add a line for {scheme} to STORES in tests/services/stores.py"
    )


@pytest.mark.parametrize("name", AT_THE_DESK)
def test_what_the_queue_promises_is_asked_of_every_store(name: str) -> None:
    module = importlib.import_module(f"tests.workers.test_{name}")
    assert "every_store" in {mark.name for mark in _listed(module.pytestmark)}
    assert {row.values[0] for row in EVERY} == set(STORES)


def test_what_needs_workers_runs_over_every_store_that_they_can_share() -> None:
    assert {row.values[0] for row in SHARED} == {store for store in STORES if store.shared}


@pytest.mark.parametrize("store", EVERY)
def test_its_row_says_what_it_is(store: Store) -> None:
    assert store.shared == (Trait.MULTI_PROCESS in store.backend.traits)
    assert store.server is None or store.server in PROGRAMS
