"""No store without the contract: whoever registers one has to prove it."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from celery_dlock.backends.base import LockBackend
from celery_dlock.registry import BACKENDS
from celery_dlock.testing import LockBackendContract


def proven() -> set[type[LockBackend]]:
    """The stores that a test class in this folder runs the contract on."""
    for file in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"tests.contract.{file.stem}")
    found: set[type[LockBackend]] = set()
    suites = [LockBackendContract]
    while suites:
        suite = suites.pop()
        suites += suite.__subclasses__()
        if suite.__module__.startswith("tests.contract.") and suite.__name__.startswith("Test"):
            found.add(suite.backend_class)
    return found


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
def test_every_registered_store_has_the_contract_run_on_it(scheme: str) -> None:
    path, _extra = BACKENDS[scheme]
    store = EntryPoint(scheme, path, "celery_dlock.backends").load()

    assert store in proven(), f"add a test class for {path} in {Path(__file__).parent}"
