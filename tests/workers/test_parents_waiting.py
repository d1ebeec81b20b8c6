"""How a task waits for its parents, with each policy: in this process, without waiting."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock import (
    Lease,
    LockLost,
    Queue,
    Replace,
    Skip,
    lock,
)
from celery_dlock.core.events import Skipped
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.runtime import runtime
from tests.services.below import PARENTS, child, elsewhere, waiting
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left


@pytest.fixture(params=PARENTS)
def parent(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("busy", ["parent", "child"])
def test_when_either_is_taken_none_is_held(desk: Desk, parent: str, busy: str) -> None:
    charge = child(desk, parent)
    with lock(parent if busy == "parent" else "order:42", app=desk.app, timeout=0):
        result = charge.delay("42")
        desk.deliver()
        assert result.state == "RETRY"
        assert len([*desk.holders(parent), *desk.holders("order:42")]) == 1
    desk.deliver()
    assert result.get() > 0


def test_who_waits_for_the_parent_is_not_starved_by_later_children(desk: Desk, parent: str) -> None:
    @desk.locked(parent, name="audit")
    def audit() -> None: ...

    charge = child(desk, parent)
    with lock("order:41", parents=[parent], app=desk.app, timeout=0):
        audit.delay()
        desk.deliver()
        assert desk.take() is not None, "it comes back"
        late = charge.delay("42")
        desk.deliver()
        assert late.state == "RETRY"


def test_who_came_before_the_parent_goes_before_it(desk: Desk, parent: str) -> None:
    ran: list[str] = []

    @desk.locked(parent, name="audit", on_contention="queue")
    def audit() -> None:
        ran.append("audit")

    charge = child(desk, parent, lambda order, lease: ran.append(order), on_contention="queue")
    with lock(parent, app=desk.app, timeout=0):
        charge.delay("42")
        audit.delay()
        charge.delay("43")
        desk.deliver_all()
    desk.deliver_all()
    assert ran == ["42", "audit", "43"]


def test_a_skipped_child_says_who_has_the_parent(desk: Desk, parent: str) -> None:
    with lock(parent, app=desk.app, timeout=0):
        result = child(desk, parent, on_contention=Skip()).delay("42")
        desk.deliver()
        assert result.get()["key"] == parent
    assert [event.key for event in desk.happened(Skipped)] == [parent]


def test_a_copy_of_what_is_done_is_dropped_whoever_has_the_parent(desk: Desk, parent: str) -> None:
    charge = child(desk, parent, on_contention=Skip())
    result = charge.delay("42")
    desk.deliver()
    token = result.get()

    with lock(parent, app=desk.app, timeout=0):
        charge.apply_async(("42",), task_id=result.id)
        desk.deliver()

    assert result.get() == token, "its result stands"


def test_what_waits_for_a_parent_does_not_count_as_waiting_for_one_of_its_children(
    desk: Desk, parent: str
) -> None:
    charge = child(desk, parent, on_contention=Replace())
    with lock(parent, app=desk.app, timeout=0):
        sent = [charge.delay(order) for order in ("42", "43", "44")]
        desk.deliver_all()
        assert waiting(desk, parent) == 3
    desk.deliver_all()
    assert all(result.get() > 0 for result in sent)


def test_its_message_is_kept_with_its_own_key_alone(desk: Desk, parent: str) -> None:
    def body(order: str, lease: Lease) -> list[int]:
        return [waiting(desk, f"order:{order}"), waiting(desk, parent)]

    result = child(desk, parent, body, on_contention=Queue(keep=True)).delay("42")
    desk.deliver()

    assert result.get() == [1, 0]


def test_a_key_that_is_reserved_for_a_retry_leaves_the_parent_to_others(
    desk: Desk, parent: str
) -> None:
    policy = Queue(reserve_retries=True)

    @desk.locked("order:{order}", name="charge", parents=[parent], on_contention=policy, bind=True)
    def charge(self: Any, order: str) -> int:
        if not self.request.retries:
            raise self.retry(countdown=10)
        return 7

    result = charge.delay("42")
    desk.deliver()
    assert [elsewhere(desk, key) for key in (parent, "order:42")] == [True, False]

    with lock(parent, app=desk.app, timeout=0):
        desk.deliver()
        # Waiting for the parent it keeps its turn, if that is the first to be taken
        assert elsewhere(desk, "order:42") is (parent > "order:42")
    desk.deliver_all()
    assert result.get() == 7
    assert nothing_is_left(desk)


def test_who_has_lost_its_lock_waits_for_its_own_key_again(desk: Desk, parent: str) -> None:
    runs: list[int] = []
    backend = runtime(desk.app).backend

    def body(order: str, lease: Lease) -> int:
        runs.append(lease.fencing_token)
        if len(runs) == 1:
            for term in lease.terms:  # as if its leases had ended, and another one had come
                backend.leave(term.claim, Outcome.ABANDONED)
            backend.enter(other)
            raise LockLost(lease.key)
        return 7

    other = Claim("order:42", "other:0:0", "nonce", ttl=10**9)
    result = child(desk, parent, body, on_contention="queue").delay("42")
    desk.deliver()
    assert (waiting(desk, "order:42"), waiting(desk, parent)) == (1, 0)

    runtime(desk.app).manager.take_back([other])
    desk.deliver_all()
    assert result.get() == 7


def test_published_in_order_it_stands_in_the_queue_of_its_own_key(desk: Desk, parent: str) -> None:
    seen: list[int] = []

    @desk.locked(
        "order:{order}", name="charge", parents=[parent], on_contention=Queue(ordered="publish")
    )
    def charge(order: str, number: int) -> None:
        seen.append(number)

    for number in range(4):
        charge.delay("42", number)
    assert (waiting(desk, "order:42"), waiting(desk, parent)) == (3, 0)
    if parent == "all":  # of one that sorts behind the key the order is not kept
        with lock(parent, app=desk.app, timeout=0):
            desk.deliver_all()
            assert (waiting(desk, "order:42"), waiting(desk, parent)) == (3, 1)
    desk.deliver_all()
    assert seen == [0, 1, 2, 3]
