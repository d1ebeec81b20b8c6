"""Tasks to put into canvases: one locked member for each policy, and plain steps around it.

A result tells how it came about: ``body(left,member(before),right)``. Every body notes in the
journal that it ran.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import Fail, FullJitter, LockedTask, Queue, Replace, Reschedule, Skip, Wait
from celery_dlock.policies import Policy
from tests.services.lab import Journal

_SOON = FullJitter(base=0.05, cap=0.2)

#: ``None`` is a member without a lock: what Celery itself does.
POLICIES: dict[str, Policy | None] = {
    "no lock": None,
    "reschedule": Reschedule(backoff=_SOON),
    "reschedule briefly": Reschedule(backoff=_SOON, max_wait=0.3),
    "queue": Queue(),
    "queue briefly": Queue(max_wait=0.5),
    "queue of one": Queue(max_waiting=1),
    "queue of one, newest dropped": Queue(max_waiting=1, overflow="drop_newest"),
    "queue of one, oldest dropped": Queue(max_waiting=1, overflow="drop_oldest"),
    "replace": Replace(),
    "replace briefly": Replace(max_wait=0.5),
    "wait": Wait(timeout=30),
    "wait briefly": Wait(timeout=0.3),
    "skip": Skip(),
    "skip and continue": Skip(then="continue"),
    "fail": Fail(),
}


def key_of(case: str) -> str:
    """What the members of a case lock on."""
    return f"case:{case}"


def register_members(app: Celery, folder: Path) -> None:
    """Define ``step``, and ``member: <policy>`` for each policy, on *app*."""
    journal = Journal(folder / "journal")

    @app.task(name="step", shared=False)
    def step(*given: Any, case: str, label: str) -> str:
        journal.write("ran", case=case, label=label)
        return shown(label, given)

    def member(self: Any, *given: Any, case: str, label: str = "member", body: str) -> str:
        journal.write("ran", case=case, label=label)
        again = self.request.retries == 0
        if body == "fails":
            raise ValueError(case)
        if body == "retries" and again:
            raise self.retry()
        if body == "autoretries" and again:
            raise ConnectionError(case)
        return shown(label, given)

    for name, policy in POLICIES.items():
        options: dict[str, Any] = {"bind": True, "shared": False, "acks_late": True}
        # Without a lock nothing keeps the second attempt, and its result, behind the RETRY of the
        # first: Celery publishes the one before it stores the other.
        options |= {"autoretry_for": (ConnectionError,), "default_retry_delay": 1}
        if policy is not None:
            options |= {"default_retry_delay": 0}
            options |= {"base": LockedTask, "lock_key": key_of("{case}"), "lock_ttl": 20.0}
            options |= {"lock_on_contention": policy}
        app.task(name=f"member: {name}", **options)(member)


def shown(label: str, given: Any) -> str:
    """*label* with what it was given: results, lists of them, and skips."""
    return f"{label}({','.join(map(_shown, given))})" if given else label


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "skipped" if value.get("skipped") is True else repr(value)
    return ",".join(map(_shown, value)) if isinstance(value, list) else str(value)
