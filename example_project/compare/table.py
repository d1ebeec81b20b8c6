"""The figures of all sides beside what they should be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from example_project.compare.figures import SIDES, Figures


def show(sides: Sequence[Figures], console: Console | None = None) -> None:
    """Print them; what is wrong is marked, also where there are no colours."""
    table = Table(title="The same orders under the same faults")
    table.add_column("", no_wrap=True)
    for heading in ("should be", *SIDES.values()):
        table.add_column(heading, justify="right")
    for cells in zip(*map(_checked, sides), strict=True):
        label, target, _ = cells[0]
        table.add_row(label, target, *(_marked(found, target) for _, _, found in cells))
    table.add_section()
    table.add_row("late writes refused", "", *(str(side.refused) for side in sides))
    table.add_row("alerts of lost locks", "", *(str(side.alerts) for side in sides))
    (console or Console()).print(table)


def _checked(figures: Figures) -> list[tuple[str, str, str]]:
    there = str(figures.there)
    return [
        (f"lamps sold, of {there} there", there, str(figures.sold)),
        ("lamps left in stock", "0", str(figures.left)),
        ("oversold", "0", str(max(0, figures.sold - figures.there))),
        ("orders charged twice", "0", str(figures.charged_twice)),
        ("charged too much", "+0.00", _difference(figures)),
        ("reports of the night", "1", str(figures.reports)),
    ]


def _difference(figures: Figures) -> str:
    return f"{(figures.charged - figures.owed) / 100:+.2f}"


def _marked(found: str, target: str) -> Text:
    return Text(found, style="green") if found == target else Text(f"✗ {found}", style="bold red")
