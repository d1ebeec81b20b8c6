"""Tasks stand still at a gate while it is closed: everybody has read before anybody writes.

Between processes it is files. The shop knows nothing of it: ``SHOP_SLOW`` names :func:`reach`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

NAMES = ("reserve", "charge", "charged", "report")


class Gates:
    """The director's side, and the task's, of the gates in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "gates"
        self._folder.mkdir(exist_ok=True)

    def close(self, names: Iterable[str] = NAMES) -> None:
        """Have everybody stand still who comes from now on."""
        for name in names:
            self._gate(name).touch()

    def open(self, name: str) -> None:
        """Let all go on."""
        self._gate(name).unlink()

    def standing(self, name: str) -> list[int]:
        """The process group of each task that stands at the gate, as often as it has one."""
        return [int(path.name.split(".")[1]) for path in self._folder.glob(f"{name}.*.here")]

    def release(self, group: int) -> None:
        """Let the tasks of one process group go on, also where the gate stays closed."""
        for path in self._folder.glob(f"*.{group}.*.here"):
            path.unlink()

    def reach(self, name: str) -> None:
        """Called in the task."""
        if not self._gate(name).exists():
            return
        here = self._folder / f"{name}.{os.getpgrp()}.{uuid.uuid4().hex}.here"
        here.touch()
        while here.exists() and self._gate(name).exists():
            time.sleep(0.01)
        here.unlink(missing_ok=True)

    def _gate(self, name: str) -> Path:
        return self._folder / f"{name}.closed"


def reach(name: str) -> None:
    """For ``SHOP_SLOW``."""
    from example_project.settings import FOLDER

    Gates(FOLDER).reach(name)
