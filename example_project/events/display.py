"""Shows how far the demo is: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from example_project.events.audit import Finding


class Display:
    """A context manager that owns the terminal while the demo runs."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(soft_wrap=True, highlight=False)
        self._began = time.monotonic()
        self._shown = -1
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("published again: {task.fields[repeated]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("events applied", total=None, repeated=0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """One line, with the seconds since the start."""
        self._console.print(f"{time.monotonic() - self._began:5.1f} s  {text}", markup=False)

    def show(self, applied: int, total: int, repeated: int) -> None:
        """How far it is; without a terminal one line every 50 events."""
        self._bar.update(self._task, completed=applied, total=total, repeated=repeated)
        if not self._console.is_terminal and applied // 50 > self._shown:
            self._shown = applied // 50
            self.say(f"{applied} of {total} events applied, {repeated} published again")

    def verdict(self, findings: Sequence[Finding]) -> None:
        """Every finding in a line, and what speaks against it below."""
        self._bar.stop()
        self._console.print()
        for finding in findings:
            mark = "[green]yes[/green]" if finding.holds else "[bold red]NO [/bold red]"
            self._console.print(f"  {mark}  {finding.claim}: {finding.detail}")
            for line in finding.wrong[:10]:
                self._console.print(f"         {line}", markup=False)
