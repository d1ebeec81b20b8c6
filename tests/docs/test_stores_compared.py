"""The page that compares the stores has them all, in each of its tables."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.benchmarks.stores import as_page
from tests.services.stores import STORES

PAGES = Path("docs/explanation")
PAGE = (PAGES / "stores-compared.rst").read_text(encoding="utf-8")
MEASURED = (PAGES / "stores-measured.txt").read_text(encoding="utf-8")
SCHEMES = [store.scheme for store in STORES]


def test_every_store_has_been_measured() -> None:
    assert {*_first_cells(MEASURED)} == {*SCHEMES}


def test_every_store_is_in_both_tables_of_the_page() -> None:
    linked = re.findall(r"   \* - :doc:`(\S+) </reference/stores/\S+>`", PAGE)

    assert sorted(linked) == sorted(SCHEMES)
    assert sorted(_first_cells(PAGE)) == sorted(SCHEMES)


def test_the_benchmark_writes_a_table_of_such_a_form() -> None:
    row = ("redis, appendfsync always", "0.60 / 0.91", "3.0", "1,667", "2,000", "0.70 / 1.02")

    assert _first_cells(as_page([row], "a machine")) == ["redis"]


def _first_cells(page: str) -> list[str]:
    """The schemes in the first column."""
    return [
        name for name in re.findall(r"^   \* - ([\w+]+)", page, re.MULTILINE) if name != "store"
    ]
