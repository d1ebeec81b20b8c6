"""The frame of a campaign: rounds of random faults, and what is said of the promises they broke."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

#: How many violations of a round are spelt out.
SHOWN = 30


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken."""

    check: StrEnum
    what: str

    def __str__(self) -> str:
        return f"{self.check}: {self.what}"


class Played(Protocol):
    """What became of a round."""

    @property
    def violations(self) -> Sequence[Violation]: ...


P = TypeVar("P", bound=Played)


def campaign(
    rounds: Callable[[Console], Iterable[P]], summary: Callable[[Console, list[P]], None]
) -> int:
    """Play the *rounds* until they are over or somebody has enough of it; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    console = Console(highlight=False, soft_wrap=True)
    done: list[P] = []
    try:
        for played in rounds(console):
            done.append(played)  # noqa: PERF402  # what was played before it was broken off counts
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    finally:
        summary(console, done)
    return 1 if any(played.violations for played in done) else 0


def in_a_folder(
    console: Console, prefix: str, holds: str, play: Callable[[Path], Sequence[P]]
) -> Sequence[P]:
    """*play* in a folder of its own, which is kept, and named, if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    kept = True
    try:
        played = play(folder)
        kept = any(each.violations for each in played)
    finally:
        if kept:
            console.print(f"  [red]{holds} are in {folder}")
        else:
            shutil.rmtree(folder)
    return played


def spell_out(console: Console, played: Played) -> None:
    for violation in played.violations[:SHOWN]:
        console.print(f"  [red]{violation}")
