"""``python -m example_project.compare``: all sides at once, and a table of what came of it.

With ``postgresql`` after it the orders and the locks of a side are in one database of a server that
runs meanwhile; otherwise they are in files.
The exit code is 0 only if each side has shown what it is there for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from example_project import command
from example_project.command import Failed, Interrupts
from example_project.compare import table
from example_project.compare.figures import FILE, SIDES, Figures


def run(folder: Path, interrupts: Interrupts) -> bool:
    """All sides, each in a folder of its own; whether they show what they should."""
    print("\nThe shop: two lamps, five customers, and the same faults for all", flush=True)
    with _databases() as database, _sides(folder, database) as running:
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


def _databases() -> AbstractContextManager[Callable[[str], str]]:
    """Makes a database, given its name: its URL, or none for files."""
    if sys.argv[1:] != ["postgresql"]:
        return nullcontext(lambda _: "")
    from example_project import postgresql  # which needs psycopg

    return postgresql.running()


@contextmanager
def _sides(folder: Path, database: Callable[[str], str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Each on a database of its own; none is left after the block, nor are its workers."""
    sides: list[subprocess.Popen[bytes]] = []
    try:
        for name in SIDES:
            shop = {"SHOP_DIR": str(folder / name), "SHOP_DATABASE": database(name)}
            line = (sys.executable, "-m", "example_project.compare.side", name)
            sides.append(subprocess.Popen(line, env={**os.environ, **shop}))
        yield sides
    finally:
        for side in sides:
            side.terminate()
        for side in sides:
            side.wait()


if __name__ == "__main__":
    sys.exit(command.main(run))
