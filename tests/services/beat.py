"""A real Celery beat as a process group of its own, with a schedule file of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from tests.services.worker import Worker

APP = "tests.services.beat_app:app"


class Beat(Worker):
    """``celery beat`` on *app*; *scheduler* is what ``-S`` takes."""

    is_up: ClassVar[bytes] = b"beat: Starting..."

    def __init__(
        self, folder: Path, config: dict[str, Any], name: str, scheduler: str = "dlock"
    ) -> None:
        super().__init__(folder, {**config, "name": name}, name, "solo", 1, APP)
        self.name = name
        self._schedule = folder / f"{name}.schedule"
        self._command = [
            *(sys.executable, "-m", "celery", "-A", APP, "beat", "--scheduler", scheduler),
            *("--schedule", str(self._schedule), "--loglevel", "INFO"),
        ]

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def has_written(self) -> bool:
        """Whether its schedule file is there."""
        return bool(self.written)

    @property
    def written(self) -> dict[str, bytes]:
        """What is in its schedule file; dbm may make several, under names of its own.

        Whenever dbm closes one it puts aside how its index was before.
        """
        files = self._schedule.parent.glob(f"{self._schedule.name}*")
        return {file.name: file.read_bytes() for file in files if file.suffix != ".bak"}
