"""What has begun and failed is tried again: it never ends as a success because it was skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import LockedTask, LockTimeout, Queue, Skip
from celery_dlock.core.events import Skipped
from celery_dlock.core.state import Outcome
from celery_dlock.policies import Complete, Contention
from tests.services.desk import Desk
from tests.workers.conftest import charging, held, nothing_is_left

KEY = "order:42"

Make = Callable[[Any], LockedTask]


class Bored:
    """A policy of a project's own that skips what finds its key taken."""

    def decide(self, contention: Contention) -> Complete:
        return Complete({"skipped": True})


@pytest.fixture
def make(desk: Desk) -> Make:
    def make(policy: Any) -> LockedTask:
        @desk.locked("order:{order}", name="refund", bind=True, on_contention=policy)
        def refund(self: Any, order: str) -> str:
            if not self.request.retries:
                raise self.retry(exc=ConnectionError("the bank is away"), countdown=0)
            desk.ran.append("refund")
            return order

        return refund

    return make


@pytest.mark.parametrize("policy", [Skip(), Skip(then="continue"), Bored()], ids=type)
def test_a_retry_that_finds_its_key_taken_comes_back_instead_of_being_skipped(
    desk: Desk, make: Make, policy: Any
) -> None:
    result = make(policy).delay("42")
    desk.deliver()

    with held(desk):
        for _ in range(3):
            desk.deliver()
            assert result.state == "RETRY"
    desk.deliver()

    assert (desk.ran, result.state, desk.happened(Skipped)) == (["refund"], "SUCCESS", [])
    assert nothing_is_left(desk)


def test_one_that_never_gets_its_key_ends_as_a_failure(desk: Desk, make: Make) -> None:
    result = make("skip").delay("42")
    desk.deliver()
    with held(desk):
        desk.deliver()
        again = desk.receive()
        again.headers["dlock"]["since"] -= 3601
        again.headers["dlock"]["expected"] = None
        desk.run(again)

    assert isinstance(result.result, LockTimeout)
    assert nothing_is_left(desk)


@pytest.mark.stores
@pytest.mark.parametrize("overflow", ["fail", "drop_newest"])
def test_no_queue_is_too_full_for_a_retry(desk: Desk, make: Make, overflow: Any) -> None:
    policy = Queue(max_waiting=1, overflow=overflow)
    result = make(policy).delay("42")
    desk.deliver()
    charge = charging(desk, on_contention=policy)

    with held(desk):
        retry = desk.receive()
        waits, refused = charge.delay("42"), charge.delay("42")
        desk.deliver()
        desk.deliver()
        desk.run(retry)
        assert desk.store.peek(KEY).parked == 2
    desk.deliver_all()

    assert (desk.ran, result.state, waits.state) == (["42", "refund"], "SUCCESS", "SUCCESS")
    assert refused.state == ("FAILURE" if overflow == "fail" else "SUCCESS")


def test_a_run_that_lost_its_lock_is_not_skipped_either(desk: Desk) -> None:
    @desk.locked("order:{order}", name="refund", on_contention="skip")
    def refund(order: str, *, lease: Any) -> None:
        desk.ran.append(order)
        if len(desk.ran) == 1:
            desk.store.leave(lease.terms[0].claim, Outcome.OVER)
            lease.terms[0].lose("somebody took it away")
            lease.check()

    result = refund.delay("42")
    desk.deliver()
    with held(desk):
        desk.deliver()
        assert result.state == "RETRY"
    desk.deliver()

    assert (desk.ran, result.state, desk.happened(Skipped)) == (["42", "42"], "SUCCESS", [])
