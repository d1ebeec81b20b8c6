"""``python -m example_project.compare``: all sides at once, and a table of what came of it.

The exit code is 0 only if each side has shown what it is there for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from example_project import command
from example_project.command import Failed, Interrupts
from example_project.compare import table
from example_project.compare.figures import FILE, SIDES, Figures


def run(folder: Path, interrupts: Interrupts) -> bool:
    """All sides, each in a folder of its own; whether they show what they should."""
    print("\nThe shop: two lamps, five customers, and the same faults for all", flush=True)
    with _sides(folder) as running:
        while any(side.poll() is None for side in running):
            interrupts.check()
            time.sleep(0.05)
        interrupts.check()
        if any(side.returncode for side in running):
            raise Failed("a side has not come to its end")
    figures = [Figures(**json.loads((folder / name / FILE).read_text())) for name in SIDES]
    table.show(figures)
    return as_expected(*figures)


def as_expected(no_lock: Figures, lock_only: Figures, fenced: Figures) -> bool:
    """Whether the careless have damaged what they can, and who has a fence nothing."""
    return (
        no_lock.wrong == {"stock", "money", "report"}
        and lock_only.wrong >= {"stock", "money"}
        and fenced.wrong == set()
        and fenced.refused > 0
    )


@contextmanager
def _sides(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Each on a database of its own; none is left after the block, nor are its workers."""
    sides: list[subprocess.Popen[bytes]] = []
    try:
        for name in SIDES:
            env = {**os.environ, "SHOP_DIR": str(folder / name), "SHOP_DATABASE": ""}
            line = (sys.executable, "-m", "example_project.compare.side", name)
            sides.append(subprocess.Popen(line, env=env))
        yield sides
    finally:
        for side in sides:
            side.terminate()
        for side in sides:
            side.wait()


if __name__ == "__main__":
    sys.exit(command.main(run))
