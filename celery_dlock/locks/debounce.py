"""Which calls of a debounced task are of one kind, and at which key they wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from celery_dlock.core.debounce import DEBOUNCED, Debounce
from celery_dlock.core.keys import KeyTemplate
from celery_dlock.locks.unique import by_key, named_by


@dataclass(frozen=True, slots=True)
class Debouncing:
    """How calls of a *task* are debounced."""

    task: str
    options: Debounce
    by: KeyTemplate

    @classmethod
    def of(cls, task: str, options: Debounce, locks: KeyTemplate) -> Self:
        """Raises as :func:`~celery_dlock.locks.unique.by_key` does."""
        return cls(task, options, by_key(task, options.by, locks))

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """At which key of the store a call waits. Raises as :meth:`KeyTemplate.keys` does."""
        return DEBOUNCED + named_by(self.task, self.by, args, kwargs)
