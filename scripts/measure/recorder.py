"""Counts the calls that one thread makes inside a package, and how often it changes the file.

Resumed generators, comprehensions and lambdas are not counted: they are steps of a call that is
counted already. So are the two halves of a context manager one call.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RESUME = dis.opmap["RESUME"]

#: The bits of RESUME's argument that are zero at the start of a frame.
_RESUMED = 0b11


@dataclass(frozen=True, slots=True)
class Walk:
    """What was called, in order, each call by its file."""

    name: str
    calls: tuple[Path, ...]

    @property
    def files(self) -> frozenset[Path]:
        return frozenset(self.calls)

    @property
    def changes(self) -> int:
        """How often the next call is in another file than the one before."""
        return sum(before != after for before, after in pairwise(self.calls))


class Recorder:
    """Records calls in *package*, but for those in its subfolder *left_out*."""

    def __init__(self, package: Path, left_out: str = "testing") -> None:
        self.walks: list[Walk] = []
        self._package = package.resolve()
        self._left_out = self._package / left_out
        self._files: dict[str, Path | None] = {}

    @contextmanager
    def walk(self, name: str) -> Iterator[None]:
        """Record what this thread calls in the block."""
        calls: list[Path] = []

        def profile(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and _counts(frame) and (file := self._file(frame)):
                calls.append(file)

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)
        self.walks.append(Walk(name, tuple(calls)))

    def _file(self, frame: FrameType) -> Path | None:
        """The file within the package, or None for others."""
        name = frame.f_code.co_filename
        if name not in self._files:
            path = Path(name)
            counted = path.is_relative_to(self._package) and not path.is_relative_to(self._left_out)
            self._files[name] = path.relative_to(self._package) if counted else None
        return self._files[name]


def _counts(frame: FrameType) -> bool:
    """Whether *frame* has a name and begins: it is no generator that goes on or is closed."""
    code = frame.f_code
    if code.co_name.startswith("<"):
        return False
    if not code.co_flags & _GENERATORS:
        return True
    operation, argument = code.co_code[frame.f_lasti : frame.f_lasti + 2]
    return operation == _RESUME and not argument & _RESUMED
