"""Errors that were made elsewhere, or nearly here: each of them must be found.

A defect of the rules is a change of their shipped text, so it says exactly what is wrong, and a
rule that has been rewritten does not leave its defect behind unnoticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

from celery_dlock.core import edits, machine, turns, upkeep
from celery_dlock.core.state import Outcome
from tests.model import entering, workers
from tests.model.config import Config, Task

TWO = Config("two that queue, 1 fault", (Task(), Task()), faults=1)


@dataclass(frozen=True, slots=True)
class Defect:
    """*old* reads *new* in *function* of *module*; explored in *config*, *rule* must break."""

    name: str
    function: str
    old: str
    new: str
    rule: str
    config: Config = TWO
    module: ModuleType = machine

    @contextmanager
    def planted(self) -> Iterator[None]:
        whole = getattr(self.module, self.function)
        text = inspect.getsource(whole)
        assert text.count(self.old) == 1, f"{self.function} has no {self.old!r} to spoil"
        spoilt: dict[str, Any] = {}
        exec(
            compile(text.replace(self.old, self.new), self.name, "exec"), vars(self.module), spoilt
        )
        with ExitStack() as planted:
            for user in (edits, turns, machine, upkeep, entering, workers):
                for name in [name for name, value in vars(user).items() if value is whole]:
                    planted.enter_context(mock.patch.object(user, name, spoilt[self.function]))
            yield


@dataclass(frozen=True, slots=True)
class Disorder:
    """A worker that takes its steps in another order, or ends a delivery in another way."""

    name: str
    steps: dict[str, str]
    rule: str
    outcomes: dict[str, Outcome]
    config: Config = TWO

    @contextmanager
    def planted(self) -> Iterator[None]:
        with (
            mock.patch.dict(workers.AFTER, self.steps),
            mock.patch.dict(workers.OUTCOMES, self.outcomes),
        ):
            yield
