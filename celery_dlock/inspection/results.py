"""What Celery's result backend says of a task, where there is one that can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend


@dataclass(frozen=True, slots=True)
class Result:
    """A state, the result or error with it, since when if it is final, and the task's name."""

    state: str
    value: Any
    at: datetime | None
    name: str | None

    @property
    def skip(self) -> Mapping[str, Any] | None:
        """What a task has returned that was skipped."""
        value = self.value
        is_skip = isinstance(value, dict) and value.get("skipped") is True and "key" in value
        return value if self.state == states.SUCCESS and is_skip else None


def result_of(app: Any, task_id: str) -> Result | str | None:
    """The result of a task, a sentence that says why there is none, or ``None``: nothing yet."""
    backend = app.backend
    if isinstance(backend, DisabledBackend):
        return "no results are kept: with result_backend a task's own end would be told"
    if type(backend).__module__ == "celery.backends.rpc":
        return "results go back over rpc:// to whoever has sent a task, and cannot be asked for"
    try:
        meta = backend.get_task_meta(task_id, cache=False)
    except Exception as exc:  # of any driver, and of what is stored there
        return f"the result backend did not answer: {type(exc).__name__}: {exc}"
    if meta.get("status", states.PENDING) == states.PENDING:
        return None
    return Result(meta["status"], meta.get("result"), _at(meta.get("date_done")), meta.get("name"))


def _at(value: Any) -> datetime | None:
    """Celery writes it in UTC, some versions without saying so."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)
