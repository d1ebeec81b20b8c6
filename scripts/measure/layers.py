"""What a feature costs: the lines that its commits change, by layer, and for a line of its rule.

Lines that were added and removed are summed, as ``git`` counts them. A file that only moved counts
as a file without lines, and so does a picture.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

PACKAGE = "celery_dlock/"

#: Layers with the beginnings of their paths. A file belongs to the first that fits.
LAYERS: Mapping[str, tuple[str, ...]] = {
    "core": ("core/",),
    "Lua": (),  # by suffix
    "stores": ("stores/",),
    "messages, locks": ("messages/", "locks/"),
    "delivery, worker, publishing, tasks, policies": (
        *("delivery/", "worker/", "publishing/", "tasks/", "policies/"),
    ),
    "ops, cli, web, operate": ("ops/", "cli/", "web/", "operate"),
    "monitoring, settings, errors": ("monitoring/", "settings", "errors"),
    "contract": ("testing/contract/",),  # and what is in the tests of it
    "the rest of the package": ("",),
}
#: What all stores of the library have to pass, and is not shipped.
CONTRACT = ("tests/contract/rules/", "tests/contract/storage/")
TESTS, DOCS, OTHER = "tests", "docs", "scripts and others"
PRODUCT = tuple(layer for layer in LAYERS if layer != "contract")


@dataclass(frozen=True, slots=True)
class Changed:
    """One file of a commit, and how many lines of it were added or removed."""

    path: str
    lines: int


def layer_of(path: str) -> str:
    if path.startswith(PACKAGE):
        if path.endswith(".lua"):
            return "Lua"
        name = path.removeprefix(PACKAGE)
        return next(layer for layer, names in LAYERS.items() if name.startswith(names))
    if path.startswith("tests/"):
        return "contract" if path.startswith(CONTRACT) else TESTS
    return DOCS if path.startswith("docs/") or path.endswith(".md") else OTHER


def changed(folder: Path, ranges: Sequence[str]) -> list[Changed]:
    """The files of commits, or of ranges ``A..B``, in the repository at *folder*."""
    return [file for revision in ranges for file in _parsed(_numbers(folder, revision))]


def _numbers(folder: Path, revision: str) -> str:
    """The answer of git for one commit, or for the difference that a range makes."""
    show = ["diff"] if ".." in revision else ["show", "--format="]
    command = ["git", "-C", str(folder), *show, "--numstat", "-z", "-M", revision, "--"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _parsed(numbers: str) -> Iterator[Changed]:
    """A file is ``added TAB removed TAB path``; a renamed one has two more fields for its names."""
    fields = iter(numbers.strip("\n").split("\0"))
    for field in fields:
        if not field:
            continue
        added, removed, path = field.strip("\n").split("\t")
        if not path:
            _, path = next(fields), next(fields)
        yield Changed(path, sum(int(n) for n in (added, removed) if n != "-"))


def table_of(files: Sequence[Changed]) -> Table:
    """Lines and files by layer, their sums, and each for a line of ``core``."""
    lines = dict.fromkeys((*LAYERS, TESTS, DOCS, OTHER), 0)
    paths: dict[str, set[str]] = {layer: set() for layer in lines}
    for file in files:
        layer = layer_of(file.path)
        lines[layer] += file.lines
        paths[layer].add(file.path)
    table = Table("layer", title="Lines added and removed", title_justify="left")
    for column in ("lines", "files", "lines per line of core"):
        table.add_column(column, justify="right")

    def row(name: str, layers: Sequence[str], *, ratio: bool = True) -> None:
        total = sum(lines[layer] for layer in layers)
        per_line = f"{total / lines['core']:.1f}" if ratio and lines["core"] else ""
        names = set().union(*(paths[layer] for layer in layers))
        table.add_row(name, f"{total:,}", f"{len(names):,}", per_line)

    for layer in lines:
        row(layer, [layer], ratio=layer != "core")
    table.add_section()
    row("product without the contract", PRODUCT)
    row("all", [*lines])
    return table
