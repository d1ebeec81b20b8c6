"""A lock of the doctor's own: whether the store grants one, and takes it back.

A store may tell all that it is asked of its configuration, and refuse a command without which no
lock is taken. What most tasks need is asked for apart from what a key needs that is not free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.probe import check_rules, check_shortcut
from celery_dlock.ops.doctor.finding import (
    Broken,
    Case,
    Checks,
    Finding,
    judged,
    right_refused,
)
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend


@dataclass(frozen=True, slots=True)
class Refused:
    """What the store said to a lock of a key that was like this."""

    key: str
    error: BackendUnavailable

    @property
    def right(self) -> str:
        """What an ACL of Redis calls the command that was refused; empty if none was."""
        return right_refused(str(self.error))


_PROMISE = "A task that asks for such a key is rescheduled again and again, and never runs."

LOCK: Checks[Refused] = {
    "store-lock": (
        Broken(
            lambda refused: refused.right and refused,
            "{0.key}: {0.error}",
            promise=_PROMISE,
            fix="allow it for the user (ACL SETUSER … {0.right}), with all commands that the page "
            "of the store names; a service that refuses it to everybody cannot keep locks",
        ),
        Broken(
            lambda refused: not refused.right and refused,
            "{0.key}: {0.error}",
            promise=_PROMISE,
            fix="give this user what the page of the store asks for, and the server room to write",
        ),
    )
}

#: What is asked for, by what kind of key it is.
_WAYS: dict[str, Callable[[LockBackend, int], None]] = {
    "a free key": check_shortcut,
    "a key that another waits for": check_rules,
}


def examine_lock(case: Case, heard: str) -> Iterator[Finding]:
    """Take and release locks of our own, and find what is not among the errors in *heard*.

    A store that is not there yet is left as it is.
    """
    locks = runtime(case.app)
    ttl = locks.lease_time(None)
    for key, check in _WAYS.items():
        try:
            if not locks.backend.missing():
                check(locks.backend, ttl)
        except BackendUnavailable as exc:
            if str(exc) not in heard:
                yield from judged(LOCK, Refused(key, exc), "store")
