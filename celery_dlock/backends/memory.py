"""The store inside one process: the machine under a mutex.

What it does not give: anything to a second process. It is for tests, for eager mode and for the
pools that run in one process (threads, solo, gevent, eventlet); under prefork it is refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeVar

from celery_dlock.backends.base import BackendOptions, Guarantee, LockBackend, Reply, Trait, Wake
from celery_dlock.core import machine
from celery_dlock.core.state import (
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Outcome,
    RenewVerdict,
    Step,
)
from celery_dlock.errors import ConfigurationError

V = TypeVar("V")


@dataclass(slots=True)
class _Key:
    """One key: its state, the parked messages by task, and until when a task counts as done."""

    state: KeyState = field(default_factory=KeyState)
    messages: dict[str, bytes] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)


def wall_clock() -> int:
    """Microseconds since the epoch, on this host's clock."""
    return time.time_ns() // 1000


class MemoryBackend(LockBackend):
    """All keys of one process in one dictionary."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.LEASE_PER_TASK, Trait.MONOTONE_FENCING, Trait.STRICT_FENCING}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT

    def __init__(self, options: BackendOptions) -> None:
        self._now = options.clock or wall_clock
        self._mutex = threading.Lock()
        self._keys: dict[str, _Key] = {}
        self._token = 0

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        if url != "memory://":
            raise ConfigurationError(f"memory:// takes nothing after it, got {url!r}")
        return cls(options)

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        with self._mutex:
            self._token += 1
            step = machine.enter(self._load(claim), claim, self._now(), self._token)
            return self._commit(claim, step, message)

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        with self._mutex:
            step = machine.leave(self._load(claim), claim, outcome, self._now())
            return self._commit(claim, step, message)

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        with self._mutex:
            verdicts: list[RenewVerdict] = []
            for claim in claims:
                step = machine.renew(self._load(claim), claim, self._now())
                verdicts.append(self._commit(claim, step, None).verdict)
            return verdicts

    def reap(self, key: str) -> Reply[None]:
        with self._mutex:
            nobody = Claim(key, task="", nonce="", ttl=0)
            return self._commit(nobody, machine.reap(self._load(nobody), self._now()), None)

    def peek(self, key: str) -> KeyState:
        with self._mutex:
            found = self._keys.get(key)
            return found.state if found else KeyState()

    def close(self) -> None:
        """Nothing to give back: the locks live as long as the process."""

    def _load(self, claim: Claim) -> KeyState:
        found = self._keys.get(claim.key)
        if found is None:
            return KeyState()
        if found.done.get(claim.task, 0) <= self._now():
            return found.state
        return replace(found.state, done=frozenset({claim.task}))

    def _commit(self, claim: Claim, step: Step[V], message: bytes | None) -> Reply[V]:
        found = self._keys.setdefault(claim.key, _Key())
        before, after = found.state, step.state
        if claim.task in after.done:
            found.done.setdefault(claim.task, self._now() + claim.done_ttl)
        found.state = replace(after, done=frozenset())
        known = {w.task for w in after.waiting} | {g.task for g in after.grants}
        if message is not None and claim.task in known:
            found.messages.setdefault(claim.task, message)
        wakes = tuple(Wake(claim.key, task, found.messages[task]) for task in step.wakes)
        if known or found.messages:
            found.messages = {t: m for t, m in found.messages.items() if t in known}
        self._tidy(claim.key, found, left=len(after.holders) < len(before.holders))
        return Reply(step.verdict, wakes)

    def _tidy(self, key: str, found: _Key, *, left: bool) -> None:
        """A key that says nothing any more is dropped, so idle keys cost no memory."""
        if left and len(found.done) > 1:
            now = self._now()
            found.done = {task: until for task, until in found.done.items() if until > now}
        state = found.state
        if not (state.holders or state.grants or state.waiting or state.lost or found.done):
            del self._keys[key]
