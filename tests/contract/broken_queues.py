"""More stores with one known defect each: of memory, of the queue, of keys and of atomicity."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar

from celery_dlock.backends.base import BackendOptions, Reply, Wake
from celery_dlock.backends.memory import _Key
from celery_dlock.core import machine
from celery_dlock.core.state import (
    Claim,
    Drop,
    KeyState,
    Mode,
    Outcome,
    Reason,
    Run,
    Same,
    Wait,
)
from tests.contract.broken import Broken, Entered, Left


class ForgetsWhatIsDone(Broken):
    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        outcome = Outcome.OVER if outcome is Outcome.DONE else outcome
        return super().leave(claim, outcome, message)


class NeverForgetsWhatIsDone(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, done_ttl=claim.done_ttl * 1_000_000)


class ForgetsLostRuns(Broken):
    def _load(self, claim: Claim, now: int) -> KeyState:
        return replace(super()._load(claim, now), lost=())


class GrantsOneTooMany(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, limit=claim.limit + 1)


class GivesAllTheSameSlot(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Run):
            return replace(reply, verdict=replace(reply.verdict, slot=0))
        return reply


class LetsReadersJoinAWriter(Broken):
    def _load(self, claim: Claim, now: int) -> KeyState:
        state = super()._load(claim, now)
        if claim.mode is Mode.SHARED:
            return replace(state, holders=tuple(h for h in state.holders if h.mode is Mode.SHARED))
        return state


class LetsNewcomersOvertakeACall(Broken):
    def _load(self, claim: Claim, now: int) -> KeyState:
        state = super()._load(claim, now)
        return replace(state, grants=tuple(g for g in state.grants if g.task == claim.task))


class WakesNobody(Broken):
    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        return replace(super().leave(claim, outcome, message), wakes=())


class WakesNobodyWhenItRefuses(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        return replace(super().enter(claim, message), wakes=())


class WakesTwo(Broken):
    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        waiting = self._keys.get(claim.key, _Key()).state.waiting
        if reply.wakes and waiting and waiting[0].parked:
            return replace(reply, wakes=(*reply.wakes, Wake(claim.key, waiting[0].task, b"")))
        return reply


class NeverCallsAgain(Broken):
    def reap(self, key: str) -> Reply[None]:
        if any(g.due <= self._now() for g in self._keys.get(key, _Key()).state.grants):
            return Reply(None)
        return super().reap(key)


class DropsTheOnlyOtherCopy(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        if any(h.task == claim.task and h.nonce != claim.nonce for h in self.holders(claim.key)):
            return Reply(Drop(Reason.WAITING))
        return super().enter(claim, message)


class TakesARedeliveryForTheOwner(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Same):
            return Reply(Run(reply.verdict.holder.slot, reply.verdict.holder.token))
        return reply


class ForgetsPlaces(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, wait=Wait.NOT) if claim.wait is Wait.PLACE else claim


class LosesTheMessage(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        return super().enter(claim, None)


class TakesTheMessageForText(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        text = (message or b"").decode(errors="replace")
        return super().enter(claim, text.encode())


class IgnoresTheLockDelay(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, lock_delay=0)


class FoldsTheCaseOfKeys(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, key=claim.key.lower())


class IgnoresThePrefix(Broken):
    shared: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self._keys = self.shared


class LosesEverythingOnClose(Broken):
    def close(self) -> None:
        self._keys.clear()


class ReadsBeforeItLocks(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        with self._mutex:
            now, state = self._now(), self._load(claim, self._now())
            self._token += 1
            token = self._token
        time.sleep(0.001)  # as long as a round trip takes
        with self._mutex:
            step = machine.enter(state, claim, now, token)
            return self._commit(claim, state, step, message, now)
