"""A unique task at the desk, and its claim in the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import BackendUnavailable, LockedTask
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.stores.base import LockBackend
from tests.services.desk import Desk

Make = Callable[..., LockedTask]
UNTIL = pytest.mark.parametrize("until", ["done", "start"])


def maker(desk: Desk) -> Make:
    """``make(unique="done", …)``: a unique task on the desk; *does* is called in its body."""

    def make(unique: Any = "done", does: Callable[[Any], Any] | None = None, **options: Any) -> Any:
        @desk.locked(unique=unique, bind=True, **{"name": "report", **options})
        def report(self: Any, day: Any, depth: int = 1) -> str:
            desk.ran.append(day)
            return str(does(self) if does else day)

        return report

    return make


def once_more(task: Any) -> str:
    """A body that retries at once, the first time; which attempt it was."""
    if not task.request.retries:
        raise task.retry(countdown=0)
    return f"attempt {task.request.retries}"


def claims(desk: Desk, report: LockedTask, *args: Any) -> UniqueClaim | None:
    """The claim of a call, as it stands."""
    unique = report.lock_definition.unique
    assert unique is not None
    text = desk.store.swap(unique.name(args or (1,), {}), None, None, 0)
    return None if text is None else UniqueClaim.decode(text)


def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute has passed since any message was published."""
    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)


def without_answer(ask: Callable[..., object] | None = None) -> Callable[..., None]:
    """In place of *ask* of a store, which does it nevertheless if it is given."""

    def asked(*given: Any) -> None:
        if ask is not None:
            ask(*given)
        raise BackendUnavailable("no answer")

    return asked


def duplicate_call(store: LockBackend) -> Callable[[], object]:
    """Another call like one whose message the broker has."""
    claims, now = UniqueClaims(store), time.time()
    claims.call("report(1)", UniqueClaim("lives:0:0", "report", "web:1", now), 3600)

    def call() -> None:
        _, answer = claims.call("report(1)", UniqueClaim("mine:0:0", "report", "web:2", now), 3600)
        assert (answer.claim.task_id, answer.publish) == ("lives", False)

    return call


class Away:
    """A lock store that does not answer."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(desk.store, "swap", without_answer())
