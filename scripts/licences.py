"""``python -m scripts.licences``: what is installed with each extra, and under which licence.

It writes the table of ``docs/reference/licences.rst`` from what the packages of this environment
say of themselves; with ``--check`` it says whether that table is up to date.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import defaultdict
from importlib.metadata import metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TABLE = Path(__file__).resolve().parents[1] / "docs/reference/licences.csv"
PACKAGE = "celery-dlock"


def needed(package: str, extras: frozenset[str]) -> set[str]:
    """The packages that *package* with *extras* needs in this environment, and what they need."""
    packages: set[str] = set()
    pending = [(package, extras)]
    seen = set(pending)
    while pending:
        name, wanted = pending.pop()
        for requirement in map(Requirement, requires(name) or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                packages.add(canonicalize_name(requirement.name))
                more = (requirement.name, frozenset(requirement.extras))
                pending += {more} - seen
                seen.add(more)
    return packages - {PACKAGE}


def licence(package: str) -> str:
    """The licence in the metadata: an SPDX expression, else classifiers, else a line of text."""
    fields = metadata(package)
    if "License-Expression" in fields:
        return fields["License-Expression"]
    classifiers = fields.get_all("Classifier") or ()
    names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    return ", ".join(names) or fields["License"].partition("\n")[0]


def table() -> str:
    core = needed(PACKAGE, frozenset())
    comes_with = defaultdict(list, {package: ["always"] for package in core})
    for extra in sorted(set(metadata(PACKAGE).get_all("Provides-Extra") or ()) - {"all"}):
        for package in needed(PACKAGE, frozenset({extra})) - core:
            comes_with[package].append(extra)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["package", "licence", "comes with"])
    rows.writerows([p, licence(p), ", ".join(comes_with[p])] for p in sorted(comes_with))
    return text.getvalue()


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        TABLE.write_text(table())
    elif table() != TABLE.read_text():
        sys.exit(f"{TABLE.name} is of another day: python -m scripts.licences writes it anew")
    else:
        print(f"{TABLE.name} is up to date")
