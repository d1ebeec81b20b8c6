"""A process that takes locks, as far as a store can tell: a manager of its own, with its keeper."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_dlock import BackendUnavailable, Lease
from celery_dlock.core.lease import Term
from celery_dlock.locks.manager import Keeping, LockManager
from celery_dlock.locks.refused import Refused
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import claim
from tests.services.until import until


@dataclass
class Process:
    """One that takes locks, and notes which it was told to have lost, and when."""

    store: LockBackend
    told: dict[str, float] = field(default_factory=dict[str, float])
    leases: list[Lease] = field(default_factory=list[Lease])

    def __post_init__(self) -> None:
        self.manager = LockManager(self.store, wake=lambda wakes: None)

    def ask(self, task: str, key: str, ttl: float) -> Lease | Refused:
        """A lease, or who has it."""
        found = self.manager.acquire([claim(task, key=key, ttl=ttl)], Keeping(None, self._lost))
        self.leases.extend([found] if isinstance(found, Lease) else [])
        return found

    def close(self) -> None:
        """Nothing is renewed any more."""
        for lease in self.leases:
            lease.give_back()
        self.store.close()

    def take(self, task: str, key: str, ttl: float) -> Lease:
        lease = self.ask(task, key, ttl)
        assert isinstance(lease, Lease)
        return lease

    def answers(self, task: str, key: str, ttl: float) -> Lease | Refused | None:
        """As :meth:`ask`; ``None`` while the store does not answer."""
        try:
            return self.ask(task, key, ttl)
        except BackendUnavailable:
            return None

    def _lost(self, term: Term, reason: str) -> None:
        self.told[term.key] = time.monotonic()


def first_lease(process: Process, task: str, key: str, ttl: float) -> Lease:
    """The lease of *task*, as soon as the store gives one."""
    answers: list[Lease] = []

    def asks() -> bool:
        answer = process.answers(task, key, ttl)
        answers.extend([answer] if isinstance(answer, Lease) else [])
        return bool(answers)

    until(f"{task} gets {key}", asks)
    return answers[0]


def renewal(held: Lease) -> Callable[[], bool]:
    """Whether *held* was renewed since."""
    (term,) = held.terms
    trusted = term.trusted_until
    return lambda: term.trusted_until > trusted
