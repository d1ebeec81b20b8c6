"""No store without its proofs: whoever registers one has to run its part of the contract on it.

The contract is a class that each store's tests inherit; what runs with workers or at the desk
takes its stores from the table in ``tests/services/stores.py``. On which kinds of store the rules
have to be shown is a list in ``tests/proofs``, to which each whole run is held.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.registry import BACKENDS, backend_class
from celery_dlock.stores.base import LockBackend, NoteStore, Trait
from celery_dlock.testing.contract import (
    LockBackendContract,
    NoteStoreContract,
    SharedStoreContract,
)
from tests.contract.suites import Notes, SharedStorage, Storage
from tests.services.programs import PROGRAMS
from tests.services.stores import EVERY, STORES, Store

HERE = Path(__file__).parent

#: Other connections to what runs the same scripts as Redis: they pass what the package ships.
BY_ANOTHER_CONNECTION = {"redis+sentinel", "redis+cluster"}

#: The same store, which finds its server in another way; that has tests of its own.
BY_ANOTHER_ADDRESS = {"django": "postgresql"}


def store_of(scheme: str) -> type[LockBackend]:
    return backend_class(f"{BY_ANOTHER_ADDRESS.get(scheme, scheme)}://")


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


def proofs_of(*suites: type[object]) -> dict[str, object]:
    return {
        name: value
        for suite in suites
        for name, value in inspect.getmembers(suite)
        if name.startswith("test_")
    }


def contract_for(scheme: str) -> dict[str, object]:
    """The tests that the store has to pass for itself."""
    store = store_of(scheme)
    shared = Trait.MULTI_PROCESS in store.traits
    notes = issubclass(store, NoteStore)
    if scheme in BY_ANOTHER_CONNECTION:
        shipped = SharedStoreContract if shared else LockBackendContract
        return proofs_of(shipped, *([NoteStoreContract] if notes else []))
    return proofs_of(SharedStorage if shared else Storage, *([Notes] if notes else []))


def left_out(suite: type[LockBackendContract]) -> set[str]:
    module = importlib.import_module(suite.__module__)
    marks = [*getattr(suite, "pytestmark", []), *_listed(getattr(module, "pytestmark", []))]
    return {mark.name for mark in marks} & {"skip", "skipif", "xfail"}


def _listed(marks: Any) -> list[Any]:
    return marks if isinstance(marks, list) else [marks]


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
def test_every_registered_store_has_its_part_of_the_contract_run_on_it(scheme: str) -> None:
    store = store_of(scheme)
    assert store in suites(), f"add a test class for {store} in {HERE}"
    contract = contract_for(scheme)

    missing = {
        suite: {name for name, test in contract.items() if proofs_of(suite).get(name) is not test}
        for suite in suites()[store]
    }
    assert not min(missing.values(), key=len), f"its own, or none: {missing}"
    assert not any(left_out(suite) for suite in missing), "a suite is not run everywhere"


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
def test_every_registered_store_is_in_the_table_of_the_other_tests(scheme: str) -> None:
    assert store_of(scheme) in {store.backend for store in STORES}, (
        f"add a line for {scheme} to STORES in tests/services/stores.py"
    )


@pytest.mark.parametrize(("scheme", "other"), BY_ANOTHER_ADDRESS.items())
def test_a_store_by_another_address_has_no_operation_of_its_own(scheme: str, other: str) -> None:
    store = backend_class(f"{scheme}://")
    assert store.__bases__ == (store_of(other),)
    assert not [name for name in vars(store) if not name.startswith("_")]


@pytest.mark.parametrize("store", EVERY)
def test_its_row_says_what_it_is(store: Store) -> None:
    assert store.shared == (Trait.MULTI_PROCESS in store.backend.traits)
    assert store.server is None or store.server in PROGRAMS
