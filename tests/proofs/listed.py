"""The lists: on which kinds of store each promise and each part of the contract has to be shown."""

from __future__ import annotations

import importlib
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

#: Stores of a kind. Each kind has code of its own.
KINDS = {
    "memory": {"memory"},
    "compare-and-set": {"rows", "etcd", "zookeeper"},
    "redis": {"redis", "redis+sentinel", "redis+cluster"},
    "redlock": {"redlock"},
    "sql": {"sqlite"},
    "postgresql": {"postgresql"},
    "etcd": {"etcd"},
    "zookeeper": {"zookeeper"},
}

#: The folder of a part of the contract.
FOLDERS = {
    "rules": "rules",
    "taking": "rules",
    "storage": "storage",
    "processes": "storage",
    "each": "storage",
    "promised": "storage",
}

#: The kinds of store on which each test has to pass.
Proofs = Mapping[str, Collection[str]]


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def promises() -> Proofs:
    """The tests that ``promises.rst`` and ``failure-windows.rst`` name."""
    return {
        test: group["kinds"] for group in read("promises.toml")["shown"] for test in group["tests"]
    }


def contract() -> Proofs:
    """The tests of the contract."""
    proofs = defaultdict[str, set[str]](set)
    for part, table in read("contract.toml").items():
        for suite in (suite_of(part, name) for name in table["classes"]):
            for test in filter(lambda name: name.startswith("test_"), dir(suite)):
                proofs[test].update(table["kinds"])
    return proofs


def suite_of(part: str, name: str) -> type[object]:
    """The class that a row of the table is about."""
    module, _, suite = name.partition(".")
    found: type[object] = getattr(
        importlib.import_module(f"tests.contract.{FOLDERS[part]}.{module}"), suite
    )
    return found


def missing(
    proofs: Proofs, shown: Mapping[str, Collection[str]], waived: Collection[str] = ()
) -> Iterator[str]:
    """What was not shown: *shown* are the stores on which each test has passed.

    Tests that are *waived* were skipped somewhere: their server is not installed.
    """
    for test, kinds in proofs.items():
        stores = shown.get(test)
        if test in waived:
            continue
        if stores is None:
            yield f"{test} has not passed"
            continue
        for kind in kinds:
            if not KINDS[kind] & set(stores):
                yield f"{test} has not passed on {kind}, but on {sorted(stores) or 'no store'}"
