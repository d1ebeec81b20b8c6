"""A file with what may be secret, such as the arguments of tasks, is for its owner alone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp


def make_for_owner(path: str | Path) -> None:
    """Make an empty file that nobody else may read, unless there is one; that stays as it is.

    It never opens the file under its name: to close it would free the locks that SQLite has on it
    in this process. SQLite gives the files that it puts beside it the same mode.
    """
    with suppress(OSError, RuntimeError, ValueError):  # whoever opens it says what is wrong
        file = Path(path).resolve()
        if not file.exists():
            descriptor, empty = mkstemp(prefix=f".{file.name}.", dir=file.parent)
            os.close(descriptor)
            try:
                os.link(empty, file)
            finally:
                Path(empty).unlink()
