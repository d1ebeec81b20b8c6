"""A command that works in a folder of its own and leaves nothing behind.

The folder stays only where something went wrong, to be looked at.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType


class Interrupted(Exception):
    """Somebody pressed Ctrl-C, closed the terminal, or asked us to end."""


class Failed(Exception):
    """Something that must happen did not, in time."""


class Interrupts:
    """Notes such a signal, to be acted on where nothing is left half done."""

    def __init__(self) -> None:
        self._seen = False
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._seen = True

    def check(self) -> None:
        """Raise Interrupted if one came."""
        if self._seen:
            raise Interrupted


def main(run: Callable[[Path, Interrupts], bool]) -> int:
    """*run* in a new folder; the exit code: 0 if it returns true, 130 after Ctrl-C, 1 otherwise."""
    interrupts = Interrupts()
    folder = Path(tempfile.mkdtemp(prefix="dlock-shop-"))
    os.environ["SHOP_DIR"] = str(folder)
    keep = False
    try:
        keep = not run(folder, interrupts)
    except Interrupted:
        print("interrupted; every worker has been ended", file=sys.stderr)
        return 130
    except Failed as failure:
        keep = True
        print(failure, file=sys.stderr)
    finally:
        if keep:
            print(f"what it has left is in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    return 1 if keep else 0
