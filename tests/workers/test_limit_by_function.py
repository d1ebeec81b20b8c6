"""``limit=`` is a function of the call: limits by plan, by customer, changed while tasks wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import ConfigurationError, Limit, LockContended, LockedTask, Queue, lock
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Mode, Outcome, Run
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left

pytestmark = pytest.mark.usefixtures("clock")

KEY, LONG = "tenant:7", 100_000 * SECOND


class Plans:
    """What each tenant may run at once, and who has asked for it."""

    def __init__(self) -> None:
        self.limit: Any = 2
        self.asked: list[int] = []

    def __call__(self, number: int, t: int = 7) -> int:
        self.asked.append(number)
        if isinstance(self.limit, Exception):
            raise self.limit
        return self.limit  # type: ignore[no-any-return]


@pytest.fixture
def plans() -> Plans:
    return Plans()


Make = Callable[..., LockedTask]


@pytest.fixture
def make(desk: Desk, plans: Plans) -> Make:
    def make(key: Any = "tenant:{t}", **options: Any) -> LockedTask:
        given = {"name": "load", "on_contention": Queue(), "limit": plans, **options}

        @desk.locked(key, **{name: value for name, value in given.items() if value is not None})
        def load(number: int, t: int = 7) -> None:
            desk.ran.append(number)

        return load

    return make


def fill(desk: Desk, count: int, limit: int, key: str = KEY) -> list[Claim]:
    claims = [
        Claim(key, f"other-{n}:0:0", f"n{n}", LONG, mode=Mode.LIMITED, limit=limit)
        for n in range(count)
    ]
    assert all(isinstance(desk.store.enter(claim).verdict, Run) for claim in claims)
    return claims


def end(desk: Desk, claim: Claim) -> None:
    runtime(desk.app).manager.take_back([claim], Outcome.DONE)


def test_a_limit_that_was_raised_from_2_to_8_lets_eight_run_of_ten_that_wait(
    desk: Desk, make: Make, plans: Plans
) -> None:
    others = fill(desk, 2, 2)
    load = make()
    for number in range(10):
        load.delay(number)
    desk.deliver_all()
    assert (desk.ran, desk.store.peek(KEY).parked) == ([], 10)

    plans.limit = 8
    load.delay(10)
    desk.deliver()

    state = desk.store.peek(KEY)
    assert len(state.holders) + len(state.grants) == 8
    desk.deliver_all()
    assert desk.ran == list(range(11))
    for other in others:
        end(desk, other)
    assert nothing_is_left(desk, KEY)


def test_as_a_limit_falls_holders_finish_and_the_next_wait_until_there_is_room(
    desk: Desk, make: Make, plans: Plans
) -> None:
    others = fill(desk, 3, 3)
    plans.limit = 1
    make().delay(1)
    desk.deliver_all()

    for other in others:
        assert desk.ran == []
        assert len(desk.store.peek(KEY).holders) <= 3
        end(desk, other)
        desk.deliver_all()

    assert desk.ran == [1]


def test_a_limit_of_one_is_a_limit_and_no_other_kind_of_key(
    desk: Desk, make: Make, plans: Plans
) -> None:
    (other,) = fill(desk, 1, 1)
    plans.limit = 1
    load = make(on_contention="fail")
    refused = load.delay(1)
    desk.deliver()
    with pytest.raises(LockContended):
        refused.get(disable_sync_subtasks=False)

    plans.limit = 2
    load.delay(2)
    desk.deliver()
    assert desk.ran == [2]

    with pytest.raises(LockContended), lock(KEY, app=desk.app, timeout=0):
        pytest.fail("one of a limit holds it")
    end(desk, other)
    with lock(KEY, app=desk.app, timeout=0):
        load.delay(3)
        desk.deliver()
    assert desk.ran == [2]


def test_two_keys_are_asked_for_as_they_are_declared_whatever_the_limits_say(
    desk: Desk, make: Make, plans: Plans
) -> None:
    load = make([Limit("tenant:{t}", plans), Limit("all", 3)], limit=None)
    others = fill(desk, 3, 3, "all")
    for limit in (2, 4):
        plans.limit = limit
        load.delay(limit)
        desk.deliver()
        state = desk.store.peek(KEY)
        assert all(turn.elsewhere == "all" for turn in state.grants)
    assert (len(state.grants), desk.store.peek("all").parked) == (2, 2)

    for other in others:
        end(desk, other)
    desk.deliver_all()

    assert desk.ran == [2, 4]
    assert nothing_is_left(desk, KEY)
    assert nothing_is_left(desk, "all")


@pytest.mark.parametrize("limit", [0, -1, True, "3", None, 2.0])
def test_what_is_no_limit_is_the_failure_of_the_task_and_nothing_is_held(
    desk: Desk, make: Make, plans: Plans, limit: Any
) -> None:
    plans.limit = limit
    result = make().delay(1)

    desk.deliver()

    with pytest.raises(ConfigurationError, match=r"what Plans.. says for 'tenant:7' is a number"):
        result.get(disable_sync_subtasks=False)
    assert (desk.ran, nothing_is_left(desk, KEY)) == ([], True)


@pytest.mark.parametrize("woken", [False, True])
def test_what_it_raises_is_the_failure_of_the_task_and_the_next_has_its_turn(
    desk: Desk, make: Make, plans: Plans, woken: bool
) -> None:
    others = fill(desk, 2, 2) if woken else []
    load = make()
    first, second = load.delay(1), load.delay(2)
    if woken:
        desk.deliver_all()
        end(desk, others.pop())

    plans.limit = OSError("the table of plans does not answer")
    desk.deliver()

    with pytest.raises(ConfigurationError, match="is no limit: it raised OSError: the table of"):
        first.get(disable_sync_subtasks=False)
    plans.limit = 2
    desk.deliver_all()
    assert (desk.ran, second.state) == ([2], "SUCCESS")
    for other in others:
        end(desk, other)
    assert nothing_is_left(desk, KEY)


def test_what_it_raises_leaves_no_key_that_was_kept_for_a_retry(desk: Desk, plans: Plans) -> None:
    @desk.locked("tenant:{t}", name="retries", limit=plans, reserve="retry", bind=True)
    def retries(self: Any, number: int, t: int = 7) -> None:
        raise self.retry(countdown=0)

    retries.delay(1)
    desk.deliver()
    assert len(desk.store.peek(KEY).grants) == 1

    plans.limit = OSError("the table of plans does not answer")
    desk.deliver()

    assert nothing_is_left(desk, KEY)


@pytest.mark.parametrize("ordered", ["publish", "arrival"])
def test_it_is_asked_when_the_turn_comes_and_never_as_the_task_is_published(
    desk: Desk, make: Make, plans: Plans, ordered: Any
) -> None:
    plans.limit = 2
    load = make(on_contention=Queue(ordered=ordered))
    for number in range(4):
        load.delay(number)
    assert plans.asked == []

    desk.deliver_all()

    assert (desk.ran, sorted(set(plans.asked))) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_published_in_order_the_first_whose_turn_comes_lets_in_the_others(
    desk: Desk, plans: Plans
) -> None:
    plans.limit = 3

    @desk.locked("tenant:{t}", name="load", limit=plans, on_contention=Queue(ordered="publish"))
    def load(number: int, t: int = 7) -> None:
        desk.ran.append((number, desk.size()))

    for number in range(5):
        load.delay(number)
    assert (desk.size(), desk.store.peek(KEY).parked) == (1, 4)

    desk.deliver()

    assert desk.ran == [(0, 2)]
    desk.deliver_all()
    assert [number for number, _ in desk.ran] == [0, 1, 2, 3, 4]


def test_a_task_that_is_called_asks_too(make: Make, plans: Plans) -> None:
    make()(1)

    assert plans.asked == [1]


def test_a_function_that_no_call_fits_is_an_error_of_the_definition(make: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"task load: limit=.* is called as the task is"):
        make(limit=lambda tenant, number, t: 3)


def test_a_block_has_no_call_of_which_a_function_could_say_the_limit(
    desk: Desk, plans: Plans
) -> None:
    with pytest.raises(ConfigurationError, match=r"limit= of lock.. is a number"):
        lock([Limit("a", plans)], app=desk.app)


def test_it_is_an_attribute_of_a_task_class_as_well(desk: Desk) -> None:
    def two(number: int) -> int:
        return 2

    @desk.app.task(base=LockedTask, lock_key="k", lock_limit=two, name="attribute")
    def attribute(number: int) -> None:
        desk.ran.append([holder.limit for holder in desk.store.peek("k").holders])

    attribute.delay(1)
    desk.deliver()

    assert desk.ran == [[2]]
