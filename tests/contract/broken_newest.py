"""Stores with one known defect each in how the newest message takes the place of another."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from celery_dlock.core.operations import Operation
from celery_dlock.core.state import Claim, KeyState, Step, WaitMode
from celery_dlock.stores.base import Reply
from tests.contract.broken import Broken, Entered

V = TypeVar("V")


class KeepsTheFirstMessage(Broken):
    noticed_by = "test_the_newest_message_is_woken_in_the_place_of_the_first"

    def _commit(
        self, operation: Operation[object], before: KeyState, step: Step[V], now: int
    ) -> Reply[V]:
        return super()._commit(operation, before, replace(step, rewrites=""), now)


class _AltersCalls(Broken):
    """Debounces a call in another way than it was asked to."""

    noticed_by = ""

    def call(self, claim: Claim, delay: int, most: int) -> tuple[Claim, int, int]:
        return claim, delay, most

    def postpone(self, claim: Claim, message: bytes, delay: int, max_delay: int) -> Reply[str]:
        claim, delay, max_delay = self.call(claim, delay, max_delay)
        return super().postpone(claim, message, delay, max_delay)


class PutsOffForEver(_AltersCalls):
    noticed_by = "test_but_no_further_than_it_may_be_put_off_at_most"

    def call(self, claim: Claim, delay: int, most: int) -> tuple[Claim, int, int]:
        return claim, delay, 1_000 * most


class IsDueAtOnce(_AltersCalls):
    noticed_by = "test_it_is_due_after_its_delay"

    def call(self, claim: Claim, delay: int, most: int) -> tuple[Claim, int, int]:
        return claim, 0, most


class NeverPutsOff(_AltersCalls):
    """Goes by the delay of the first call."""

    noticed_by = "test_a_newer_one_takes_its_place_and_puts_it_off"

    def call(self, claim: Claim, delay: int, most: int) -> tuple[Claim, int, int]:
        return claim, delay, delay


class PublishesTheNewestBesideARun(Broken):
    """So that it would run after the one that has begun, under its id, or be dropped with it."""

    noticed_by = "test_what_runs_has_begun_and_gets_no_shadow"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        if claim.wait is WaitMode.NEWEST:
            claim = replace(claim, wait=WaitMode.ENQUEUE)
        return super().enter(claim, message)
