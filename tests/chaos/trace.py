"""All that the processes of a round asked of the store, and what they heard: a file of each.

The call is written before the store is asked, so that of a process that is killed meanwhile its
last call is known.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from celery_dlock import registry, runtime
from celery_dlock.core.operations import Enter, Leave, Operation, Renew
from celery_dlock.stores.base import LockBackend


@dataclass(frozen=True, slots=True)
class Spoken:
    """*operation* was asked for; of what was not *answered* nobody knows whether it was done."""

    operation: Operation[Any]
    called: float
    answered: float | None = None
    answer: Any = None


class Trace:
    """A process's calls of its store; of calls that a store makes of its own the outer one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inside = threading.local()
        self._numbers = itertools.count()

    def follow(self, store: Any) -> None:
        """Write down what *store* is asked from now on."""
        for name, asked in ASKED.items():
            setattr(store, name, partial(self._call, getattr(store, name), asked))

    def _call(self, ask: Callable[..., Any], asked: Callable[..., Any], *given: Any) -> Any:
        if getattr(self._inside, "it", False):
            return ask(*given)
        self._inside.it = True
        number = next(self._numbers)
        try:
            self._write(number, asked(*given))
            answers = ask(*given)
            self._write(number, answers if isinstance(answers, list) else [answers])
            return answers
        finally:
            self._inside.it = False

    def _write(self, number: int, what: list[Any]) -> None:
        record = pickle.dumps((number, time.monotonic(), what))
        with (self._folder / f"{os.getpid()}.trace").open("ab") as file:
            file.write(record)


#: What is followed, and as which operations.
ASKED: Mapping[str, Callable[..., list[Operation[Any]]]] = {
    "enter": lambda *given: [Enter(*given)],
    "leave": lambda *given: [Leave(*given)],
    "apply": lambda operation: [operation],
    "apply_each": list,
    "renew": lambda claims: [Renew(claim) for claim in claims],
}


@contextmanager
def tracing(folder: Path) -> Iterator[None]:
    """The stores that are opened in the block write to *folder*."""
    opens, trace = registry.open_backend, Trace(folder)

    def opened(*args: Any, **options: Any) -> LockBackend:
        store = opens(*args, **options)
        trace.follow(store)
        return store

    with mock.patch.object(runtime, "open_backend", opened):
        yield


def spoken(folder: Path) -> list[Spoken]:
    """All of it, in the order of the calls."""
    return sorted(
        (each for path in folder.glob("*.trace") for each in _of(path)),
        key=lambda each: each.called,
    )


def _of(path: Path) -> Iterator[Spoken]:
    calls: dict[int, tuple[float, list[Operation[Any]]]] = {}
    for number, at, what in _records(path):
        if number not in calls:
            calls[number] = at, what
            continue
        called, operations = calls.pop(number)
        for operation, answer in zip(operations, what, strict=True):
            yield Spoken(operation, called, at, answer)
    for called, operations in calls.values():
        for operation in operations:
            yield Spoken(operation, called)


def _records(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)  # our own processes wrote it
            except (EOFError, pickle.UnpicklingError):  # it was killed as it wrote
                return
