"""The sink ``prometheus``, which notes how much of its process's time it takes: where it is told of
an event, and in the thread that counts what was kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery_dlock.core.events import Event
from celery_dlock.monitoring.prometheus import PrometheusSink, Tally, tally

FILE = "sink-seconds"


class Weighed(PrometheusSink):
    """In seconds of the processor, those of looking at the clock among them."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._spent = 0.0
        tally.write = self._write  # type: ignore[method-assign]

    @classmethod
    def from_app(cls, app: Any) -> Weighed:
        return cls(Path(app.conf.bench_notes).parent / FILE)

    def __call__(self, event: Event) -> None:
        began = time.thread_time()
        super().__call__(event)
        self._spent += time.thread_time() - began

    def _write(self, batch: Sequence[Event], missing: int) -> None:
        began = time.thread_time()
        Tally.write(tally, batch, missing)
        spent, self._spent = self._spent, 0.0
        spent += time.thread_time() - began
        os.write(self._file, f"{spent}\n".encode())


def seconds(folder: Path) -> float:
    """What all processes of a lab have noted so far."""
    if not (folder / FILE).exists():
        return 0.0
    return sum(map(float, (folder / FILE).read_text().split()))
