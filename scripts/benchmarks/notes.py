"""When each body began and ended, in monotonic seconds, which all processes of a machine share."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from celery import Celery

from tests.services.until import until


@dataclass(frozen=True, slots=True)
class Span:
    """One body, of *key*. ``sent`` is when its message was published, where that was asked for."""

    sent: float
    began: float
    ended: float
    key: str = ""


class Notes:
    """One line for each body that ran, in a file that the processes of a lab share."""

    def __init__(self, app: Celery) -> None:
        self._path = Path(app.conf.bench_notes)
        self.folder = self._path.parent

    def body(self, seconds: float, sent: float = 0.0, key: str = "") -> None:
        """What every contestant does, or pretends to."""
        began = time.monotonic()
        if seconds:
            time.sleep(seconds)
        os.write(_opened(self._path), f"{sent} {began} {time.monotonic()} {key}\n".encode())

    def spans(self) -> list[Span]:
        """In the order in which they began."""
        whole, _, _ = self._path.read_text().rpartition("\n")
        return sorted(map(_span, whole.splitlines()), key=lambda span: span.began)

    def wait_for(self, count: int, timeout: float = 120.0) -> list[Span]:
        """Look at little only: the contestants need the processor."""
        until(f"{count} have run", lambda: self._lines() >= count, timeout)
        return self.spans()

    def _lines(self) -> int:
        return self._path.read_bytes().count(b"\n") if self._path.exists() else 0


def _span(line: str) -> Span:
    sent, began, ended, key = line.split(" ")
    return Span(float(sent), float(began), float(ended), key)


@lru_cache
def _opened(path: Path) -> int:
    """Opened once in each process that runs bodies."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
