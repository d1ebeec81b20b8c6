"""Everything this library raises.

::

    DLockError
    ├── ConfigurationError      wrong key template, unknown setting, missing extra or trait
    ├── BackendUnavailable      the store did not answer: the call may have taken effect or not
    ├── LockContended           held by another task: key, holder's task id, seconds left
    │   └── LockTimeout         the same, after max_wait or timeout: waited, limit; a TimeoutError
    ├── LockLost                the lease is lost, or can no longer be trusted
    └── StaleFencingToken       the resource has seen a newer token: resource, mine, seen

All of them survive pickling and Celery's JSON result format: the arguments of the
constructor are ``args``, and nothing else is needed to build it again.
"""

from __future__ import annotations

import re
import shlex

#: The id of code outside tasks, as of ``lock()`` and beat: what it is, its host, its process.
_OUTSIDE_TASKS = re.compile(r"([^@]+)@([^@/]+)/(\d+)/[0-9a-f]+")


class DLockError(Exception):
    """The root of every error of this library."""


class ConfigurationError(DLockError):
    """The configuration is wrong; no message has been touched yet."""


class BackendUnavailable(DLockError):
    """The store did not answer: the call may have taken effect or not."""


class LockContended(DLockError):
    """Another task holds the key.

    *holder* is the holder's task id, or ``None`` if the key is reserved for a waiting task, cooling
    down or on hold. *seconds_left* is what remains at the time of asking, of the holder's lease,
    the cooldown or the hold. *hold* says who keeps the key closed, and why. *by* names the holder
    for people: its task and process.
    """

    def __init__(
        self,
        key: str,
        holder: str | None = None,
        seconds_left: float = 0.0,
        hold: str = "",
        by: str = "",
    ) -> None:
        self.args = _given(key, holder, seconds_left, hold, by)
        self.key = key
        self.holder = holder
        self.seconds_left = seconds_left
        self.hold = hold
        self.by = by

    def __str__(self) -> str:
        return f"{self.why}; see `dlock show {shlex.quote(str(self.key))}`"

    @property
    def why(self) -> str:
        """Why the key is not to be had, without the advice of what to do."""
        if self.hold:
            return f"{self.key!r} is on hold for another {self.seconds_left:.1f} s, by {self.hold}"
        if self.holder is None and self.seconds_left:
            return f"{self.key!r} is cooling down for another {self.seconds_left:.1f} s"
        if self.holder is None:
            return f"{self.key!r} is reserved for a task that waits for it"
        lease = f"its lease ends in {self.seconds_left:.1f} s unless it is renewed"
        return f"{self.key!r} is held by {self.by or _who(self.holder)} ({lease})"


def _given(*args: object) -> tuple[object, ...]:
    """*args* without those at the end that say nothing."""
    return _given(*args[:-1]) if args[-1] == "" else args


def _who(holder: str) -> str:
    outside = _OUTSIDE_TASKS.fullmatch(holder)
    return f"{outside[1]} on {outside[2]}:{outside[3]}" if outside else f"task {holder}"


class LockTimeout(LockContended, TimeoutError):
    """Another task held the key until *max_wait* or *timeout* had passed.

    *waited* is for how many seconds, and *limit* which option ended that. It is also a
    :exc:`TimeoutError`, and so an :exc:`OSError`, but not a :exc:`ConnectionError`.
    """

    def __init__(
        self,
        key: str,
        holder: str | None = None,
        seconds_left: float = 0.0,
        waited: float = 0.0,
        hold: str = "",
        by: str = "",
        limit: str = "",
    ) -> None:
        super().__init__(key, holder, seconds_left, hold, by)
        self.args = _given(key, holder, seconds_left, waited, hold, by, limit)
        self.waited = waited
        self.limit = limit

    @property
    def why(self) -> str:
        """The same, and which limit was reached."""
        limit = f" ({self.limit}; a larger one waits longer)" if self.limit else ""
        closed = self.holder is not None or self.seconds_left
        why = super().why if closed else f"its turn at {self.key!r} did not come"
        return f"gave up after {self.waited:.1f} s{limit}: {why}"


class LockLost(DLockError):
    """The lease of *key* is lost, or can no longer be trusted; *reason* says why.

    At the end of a :func:`~celery_dlock.lock` block it also says that the block has run.
    """

    def __init__(self, key: str, reason: str = "the lease has expired") -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"the lock on {self.key!r} is lost: {self.reason}"


class StaleFencingToken(DLockError):
    """*resource* has seen a newer token than *mine*, or *mine* from another owner: *seen*.

    *seen* is 0 where the database has the locks, too, and no longer that one.
    """

    def __init__(self, resource: str, mine: int, seen: int | None = None) -> None:
        super().__init__(resource, mine, seen)
        self.resource = resource
        self.mine = mine
        self.seen = seen

    def __str__(self) -> str:
        if self.seen == 0:
            why = (
                f"its lock on {self.resource!r}, with token {self.mine}, is over, or its "
                "transaction has a snapshot that is older than the lock"
            )
        else:
            newer = "a newer token" if self.seen is None else f"token {self.seen}"
            if self.seen == self.mine:
                newer = "another owner of that token"
            why = f"{self.resource!r} has seen {newer} since this run got token {self.mine}"
        return (
            f"late write refused: {why}. Let this error end the run: its transaction is rolled "
            "back, and a task runs again"
        )
