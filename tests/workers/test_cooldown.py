"""A cooldown: a key starts no more than one task in so many seconds, or as many as its limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Reject

from celery_dlock import (
    FullJitter,
    Limit,
    LockContended,
    LockedTask,
    LockLost,
    LockTimeout,
    Reschedule,
    lock,
)
from celery_dlock.core.events import Rescheduled, Skipped
from celery_dlock.core.state import Busy
from celery_dlock.ops import actions, overview
from celery_dlock.testing.contract.words import claim
from tests.services.desk import Desk
from tests.services.unique import once_more

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("clock")]

KEY = "tenant:7"
MINUTE = 60.0
Make = Callable[..., LockedTask]


@pytest.fixture
def make(desk: Desk) -> Make:
    """``make("queue")``: a task with a cooldown of a minute; *does* is called in its body."""

    def make(
        policy: Any,
        does: Callable[[Any], Any] | None = None,
        n: int = 1,
        cooldown: float | None = MINUTE,
        **options: Any,
    ) -> LockedTask:
        given = {"name": "sync", "on_contention": policy, **options}

        @desk.locked(Limit("tenant:{tenant}", n, cooldown), bind=True, **given)
        def sync(self: Any, number: int, tenant: int = 7) -> int:
            desk.ran.append(number)
            if does:
                does(self)
            return number

        return sync

    return make


def test_who_queues_has_its_turn_when_it_is_over(desk: Desk, make: Make) -> None:
    sync = make("queue")
    for number in range(3):
        sync.delay(number)
    desk.deliver_all()
    assert desk.ran == [0]

    for number in (1, 2):
        desk.passes(59)
        desk.deliver_all()
        assert desk.ran == list(range(number))
        desk.passes(1)
        desk.deliver_all()
        assert desk.ran == list(range(number + 1))


def test_one_that_is_skipped_says_why(desk: Desk, make: Make) -> None:
    sync = make("skip")
    sync.delay(0)
    skipped = sync.delay(1)
    desk.clock.advance(15)

    desk.deliver_all()

    why = f"{KEY!r} is cooling down for another 60.0 s"
    assert desk.result(skipped.id).result == {
        "skipped": True,
        "key": KEY,
        "holder": None,
        "since": None,
        "reason": why,
    }
    assert [event.reason for event in desk.happened(Skipped)] == [why]


@pytest.mark.parametrize(("cooldown", "least"), [(60, 45.0), (86_400, 300.0)])
def test_one_that_comes_back_does_so_when_it_is_over_or_after_five_minutes_to_look(
    desk: Desk, make: Make, cooldown: float, least: float
) -> None:
    sync = make(Reschedule(backoff=FullJitter(base=1, cap=1)), cooldown=cooldown)
    sync(0)
    desk.clock.advance(15)

    sync.delay(1)
    desk.deliver()

    (event,) = desk.happened(Rescheduled)
    assert least <= event.countdown <= least + 1


def test_as_many_start_in_that_time_as_the_limit_says(desk: Desk, make: Make) -> None:
    sync = make("queue", n=2)
    for number in range(5):
        sync.delay(number)

    desk.deliver_all()
    assert desk.ran == [0, 1]
    desk.passes(60)
    desk.deliver_all()

    assert desk.ran == [0, 1, 2, 3]


def _fails(_: Any) -> None:
    raise ValueError


def _is_rejected(_: Any) -> None:
    raise Reject(requeue=False)


@pytest.mark.parametrize("does", [_fails, _is_rejected, once_more])
def test_a_start_counts_in_any_case(desk: Desk, make: Make, does: Callable[[Any], Any]) -> None:
    sync = make("queue", does, max_retries=1)
    sync.delay(0)
    sync.delay(1)
    desk.deliver_all()
    assert desk.ran == [0]

    desk.passes(60)
    desk.deliver_all()

    assert len(desk.ran) == 2


def test_it_closes_the_key_for_all_and_says_for_how_long(desk: Desk, make: Make) -> None:
    sync, other = make("fail"), make("fail", name="other", cooldown=None)
    sync(0)
    desk.clock.advance(15)

    with pytest.raises(LockContended, match=r"is cooling down for another 45\.0 s") as refused:
        other(1)
    assert (refused.value.holder, refused.value.seconds_left) == (None, 45.0)
    with pytest.raises(LockTimeout, match="is cooling down"), lock(KEY, app=desk.app, timeout=0.01):
        pass

    desk.clock.advance(45)
    other(2)
    other(3)
    assert desk.ran == [0, 2, 3]


def test_a_block_can_have_one(desk: Desk) -> None:
    with lock(Limit(KEY, 1, cooldown=MINUTE), app=desk.app):
        desk.clock.advance(20)

    with pytest.raises(LockContended, match=r"another 40\.0 s"), _at_once(desk):
        pass
    desk.clock.advance(40)
    with _at_once(desk), _at_once(desk):  # within one execution it is the same lease
        pass


def _at_once(desk: Desk) -> Any:
    return lock(KEY, app=desk.app, timeout=0)


def test_each_key_has_a_cooldown_of_its_own(desk: Desk) -> None:
    keys = ["file", Limit("tenant", 2), Limit("mail", 2, cooldown=MINUTE), Limit("disk", 1, 10)]

    @desk.locked(keys, name="send", on_contention="fail")
    def send() -> None:
        desk.ran.append(len(desk.ran))

    send()
    names = ("file", "tenant", "mail", "disk")
    assert [len(desk.store.peek(key).cooling) for key in names] == [0, 0, 1, 1]
    with pytest.raises(LockContended, match=r"'disk' is cooling down for another 10\.0 s"):
        send()
    desk.clock.advance(10)
    send()
    desk.clock.advance(10)
    with pytest.raises(LockContended, match=r"'mail' is cooling down for another 40\.0 s"):
        send()

    assert desk.ran == [0, 1]


def test_a_body_longer_than_its_cooldown_keeps_the_key_and_leaves_it_open(
    desk: Desk, make: Make
) -> None:
    def is_long(_: Any) -> None:
        desk.clock.advance(12)
        assert isinstance(desk.store.enter(claim("other:0:0", key=KEY)).verdict, Busy)

    sync = make("fail", is_long, cooldown=10)

    sync(0)
    sync(1)

    assert desk.ran == [0, 1]


def test_what_was_taken_in_vain_does_not_cool_down(desk: Desk) -> None:
    desk.store.enter(claim("other:0:0", key="b"))
    both = lock([Limit(key, 1, MINUTE) for key in "ab"], app=desk.app, timeout=0)

    with pytest.raises(LockContended, match="'b' is held"), both:
        pass

    with lock("a", app=desk.app, timeout=0):
        pass


def test_what_a_person_takes_away_is_free_at_once(desk: Desk) -> None:
    block = lock(Limit(KEY, 1, cooldown=MINUTE), app=desk.app)
    block.acquire()
    (holder,) = overview.line(desk.app, KEY).holders
    assert actions.release(desk.app, KEY, holder.owner).carry_out("somebody")

    assert overview.line(desk.app, KEY).is_idle
    with pytest.raises(LockLost, match="released by an operator"):
        block.release()
