"""What each policy makes of a message whose key is taken."""

from __future__ import annotations

import re
from typing import Any

import pytest
from celery import signals

from celery_dlock import Lease, LockContended, LockTimeout, Wait, lock
from celery_dlock.policies import Contention, Decision, GiveUp, RunLater, WaitHere
from tests.services.desk import Desk
from tests.services.holder import held_until_refused
from tests.workers.conftest import charging


def test_skip_completes_with_a_result_that_says_who_is_at_it(desk: Desk) -> None:
    @desk.locked("order:{order}", name="report", on_contention="skip")
    def report(order: str) -> None:
        desk.ran.append(order)

    with lock("order:42", app=desk.app, timeout=0) as lease:
        result = report.apply_async(("42",))
        desk.deliver()

    assert desk.ran == []
    assert result.state == "SUCCESS"
    found = result.get()
    assert found["skipped"] is True
    assert found["key"] == "order:42"
    assert lease.owner.startswith(found["holder"])
    assert 0 <= result.date_done.timestamp() - found["since"] < 60


def test_fail_names_the_holder_and_the_seconds_left_and_calls_the_errback(desk: Desk) -> None:
    called = []

    @desk.app.task(name="errback")
    def errback(request: Any, error: Exception, traceback: Any) -> None:
        called.append(error)

    charge = charging(desk, on_contention="fail")
    with lock("order:42", app=desk.app, timeout=0, ttl=10) as lease:
        result = charge.apply_async(("42",), link_error=errback.s())
        desk.deliver()

    assert result.state == "FAILURE"
    error = result.result
    assert type(error) is LockContended
    assert error.key == "order:42"
    assert lease.owner.startswith(str(error.holder))
    assert 0 < error.seconds_left <= 10
    assert [type(e) for e in called] == [LockContended]


def test_wait_takes_the_key_in_the_same_slot_when_it_is_released(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=Wait(timeout=30))
    def charge(order: str, *, fencing_token: int) -> int:
        return fencing_token

    with held_until_refused(desk, "order:42") as token:
        result = charge.apply_async(("42",))
        desk.deliver()

    assert result.get() > token
    assert desk.size() == 0


def test_wait_ends_in_lock_timeout(desk: Desk) -> None:
    charge = charging(desk, on_contention=Wait(timeout=0.2))
    with lock("order:42", app=desk.app, timeout=0):
        result = charge.apply_async(("42",))
        desk.deliver()

    assert result.state == "FAILURE"
    assert type(result.result) is LockTimeout
    assert 0.2 <= result.result.waited < 5


class Says:
    """A policy that keeps what it was asked and answers one thing after another."""

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)
        self.asked: list[Contention] = []

    def decide(self, contention: Contention) -> Decision:
        self.asked.append(contention)
        return self.decisions.pop(0)


def test_a_policy_of_ones_own_is_told_what_there_is_to_know(desk: Desk) -> None:
    policy = Says(RunLater(7), RunLater(8))

    charge = charging(desk, on_contention=policy)
    with lock("order:42", app=desk.app, timeout=0, ttl=10) as lease:
        result = charge.apply_async(("42",))
        desk.deliver()
        desk.deliver()

    first, second = policy.asked
    assert (first.key, first.task_id) == (second.key, second.task_id) == ("order:42", result.id)
    assert (first.attempt, second.attempt) == (0, 1)
    assert 0 <= first.waited < second.waited < 60
    assert first.holder is not None
    assert lease.owner.startswith(first.holder.task_id)
    assert 0 < first.holder.seconds_left <= 10
    assert first.waiting == 0


def test_the_state_is_stored_before_the_copy_is_published_and_not_again(desk: Desk) -> None:
    # Celery stores RETRY afterwards, and over what a faster copy has stored meanwhile
    charge = charging(desk, "k", on_contention=Says(RunLater(0)))
    happened = []
    store = desk.app.backend.store_result

    def published(**_: Any) -> None:
        happened.append("published")

    def stored(task_id: str, result: Any, state: str, **more: Any) -> Any:
        happened.append(state)
        return store(task_id, result, state, **more)

    desk.patch.setattr(desk.app.backend, "store_result", stored)
    # Before the first publish: Celery 5.5 may not hear of who comes later
    signals.after_task_publish.connect(published)
    with lock("k", app=desk.app, timeout=0):
        result = charge.delay()
        happened.clear()
        desk.deliver()

    assert happened == ["RETRY", "published"]
    assert isinstance(result.result, LockContended)
    assert "LockContended" in result.traceback


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
def test_a_result_backend_that_is_away_does_not_keep_the_copy(desk: Desk) -> None:
    charge = charging(desk, "k", on_contention=Says(RunLater(0)))

    def away(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("away")

    with lock("k", app=desk.app, timeout=0):
        result = charge.delay()
        with desk.patch.context() as patch:
            patch.setattr(desk.app.backend, "store_result", away)
            desk.deliver()
    assert desk.size() == 1
    desk.deliver()

    assert result.state == "SUCCESS"


def test_after_waiting_here_the_policy_is_asked_again(desk: Desk) -> None:
    policy = Says(WaitHere(0.05), WaitHere(0.05), GiveUp(KeyError("enough")))

    charge = charging(desk, "k", on_contention=policy)
    with lock("k", app=desk.app, timeout=0):
        result = charge.delay()
        desk.deliver()

    assert repr(result.result) == "KeyError('enough')"
    waited = [contention.waited for contention in policy.asked]
    assert waited == sorted(waited)
    assert waited[1] >= 0.05
    assert waited[2] >= 0.1


class KeepsItsPlace:
    def patience(self, attempt: int) -> float:
        return 3600.0


class Broken(KeepsItsPlace):
    def decide(self, contention: Contention) -> Any:
        raise ZeroDivisionError


class Undecided(KeepsItsPlace):
    def decide(self, contention: Contention) -> Any:
        return "later, maybe"


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (Broken(), "ZeroDivisionError: "),
        (Undecided(), "ConfigurationError: .* has decided 'later, maybe'; decisions are RunLater"),
    ],
)
@pytest.mark.parametrize("acks_late", [True, False])
def test_a_policy_that_breaks_fails_its_task_visibly(
    desk: Desk, policy: Any, error: str, acks_late: bool
) -> None:
    charge = charging(desk, "k", on_contention=policy, acks_late=acks_late)
    with lock("k", app=desk.app, timeout=0):
        result = charge.delay()
        message = desk.deliver()
        # And no place of it holds up what waits behind it
        assert desk.store.peek("k").waiting == ()

    assert message._state == "ACK"
    assert desk.size() == 0
    assert result.state == "FAILURE"
    assert re.match(error, f"{type(result.result).__name__}: {result.result}")


@pytest.fixture
def transfer(desk: Desk) -> Any:
    @desk.locked(["account:{source}", "account:{target}"], name="transfer")
    def transfer(source: str, target: str, *, lease: Lease) -> list[Any]:
        return [list(lease.keys), len(set(lease.fencing_tokens.values()))]

    return transfer


@pytest.mark.parametrize("taken", ["account:a", "account:b"])
def test_a_task_with_two_keys_takes_none_when_one_is_taken(
    desk: Desk, transfer: Any, taken: str
) -> None:
    result = transfer.delay("b", "a")
    (free,) = {"account:a", "account:b"} - {taken}

    with lock(taken, app=desk.app, timeout=0):
        desk.deliver()
        assert result.state == "RETRY"
        assert desk.holders(free) == []
    desk.deliver()

    assert result.get() == [["account:a", "account:b"], 2]
