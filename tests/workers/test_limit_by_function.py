"""A limit is a function of the call: limits by plan, by customer, changed while tasks wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery import current_task, signals
from celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
)

from celery_dlock import (
    ConfigurationError,
    Limit,
    LockContended,
    LockedTask,
    LockTimeout,
    Ordered,
    Queue,
    lock,
)
from celery_dlock.core.access import LARGEST_LIMIT
from celery_dlock.core.checks import quoted
from celery_dlock.core.events import Rescheduled
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Mode, Outcome, Run, task_id_of
from celery_dlock.delivery import taking
from celery_dlock.locks.throttled_warning import _Spokesman
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left, revoke

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
        if self.limit == "retry()":
            raise current_task.retry(countdown=0)
        return self.limit  # type: ignore[no-any-return]


@pytest.fixture
def plans() -> Plans:
    return Plans()


Make = Callable[..., LockedTask]


@pytest.fixture
def make(desk: Desk, plans: Plans) -> Make:
    def make(key: Any = None, **options: Any) -> LockedTask:
        given = {"name": "load", "on_contention": Queue(), **options}

        @desk.locked(key or Limit("tenant:{t}", plans), **given)
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
    load = make([Limit("tenant:{t}", plans), Limit("all", 3)])
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


AWAY = OSError("the table of plans does not answer")
TOO_MANY = (LARGEST_LIMIT + 1, sys.maxsize, 2**63, 10**5000)


NO_LIMITS = [0, -1, True, "3", None, 2.0, *TOO_MANY]
POLICIES = ["reschedule", "skip", "fail", "wait"]


@pytest.mark.parametrize(
    ("policy", "limit"),
    [*(("queue", limit) for limit in (AWAY, *NO_LIMITS)), *((name, AWAY) for name in POLICIES)],
    ids=quoted,
)
def test_without_a_limit_the_task_is_put_off_and_nothing_is_held(
    desk: Desk, make: Make, plans: Plans, limit: Any, policy: str
) -> None:
    plans.limit = limit
    result = make(on_contention=policy).delay(1)

    first = desk.deliver()

    assert (first.acknowledged, result.state, desk.ran) == (True, "RETRY", [])
    assert "what Plans() says for 'tenant:7'" in str(result.result)
    assert isinstance(result.result, ConfigurationError)
    assert nothing_is_left(desk, KEY)
    again = desk.receive()
    assert again.headers["eta"] is not None
    plans.limit = 2
    desk.run(again)
    assert (desk.ran, result.state) == ([1], "SUCCESS")


def test_who_was_woken_keeps_its_turn_without_a_limit_and_wakes_nobody(
    desk: Desk, make: Make, plans: Plans
) -> None:
    others = fill(desk, 2, 2)
    load = make()
    first, second = load.delay(1), load.delay(2)
    desk.deliver_all()
    end(desk, others.pop())
    plans.limit = AWAY

    for pause in (5, 10, 20):
        assert desk.deliver().acknowledged
        assert (first.state, desk.size(), desk.ran) == ("RETRY", 0, [])
        state = desk.store.peek(KEY)
        assert [task_id_of(turn.task) for turn in state.grants] == [first.id]
        desk.passes(pause - 1)
        assert desk.size() == 0
        desk.passes(1)
    assert {event.reason for event in desk.happened(Rescheduled)} == {str(first.result)}

    plans.limit = 2
    desk.deliver_all()
    assert (desk.ran, second.state) == ([1, 2], "SUCCESS")
    for other in others:
        end(desk, other)
    assert nothing_is_left(desk, KEY)


@pytest.mark.parametrize("ending", ["max_wait", "revoked"])
def test_who_is_woken_to_end_ends_without_a_limit(
    desk: Desk, make: Make, plans: Plans, ending: str
) -> None:
    (other,) = fill(desk, 1, 1)
    plans.limit = 1
    keys = [Limit("all", 3), Limit("tenant:{t}", plans)]
    result = make(keys, on_contention=Queue(max_wait=60)).delay(1)
    desk.deliver()
    assert len(desk.store.peek("all").grants) == 1

    plans.limit = AWAY
    if ending == "revoked":
        revoke(desk, result.id)
    else:
        desk.passes(61)
    desk.deliver()

    end(desk, other)
    if ending == "revoked":
        assert result.state == "REVOKED"
    else:
        assert isinstance(result.result, LockTimeout)
    assert desk.size() == 0
    assert nothing_is_left(desk, KEY)
    assert nothing_is_left(desk, "all")


def test_whose_key_was_kept_for_a_retry_keeps_it_without_a_limit(desk: Desk, plans: Plans) -> None:
    @desk.locked(Limit("tenant:{t}", plans), name="retries", reserve="retry", bind=True)
    def retries(self: Any, number: int, t: int = 7) -> None:
        if not self.request.retries:
            raise self.retry(countdown=0)
        desk.ran.append(number)

    retries.delay(1)
    desk.deliver()
    plans.limit = AWAY
    desk.deliver()
    assert len(desk.store.peek(KEY).grants) == 1

    plans.limit = 2
    desk.deliver_all()

    assert desk.ran == [1]
    assert nothing_is_left(desk, KEY)


@pytest.mark.parametrize("woken", [False, True])
@pytest.mark.parametrize(
    ("end_of_it", "state", "comes_again"),
    [
        (Ignore(), "IGNORED", 0),
        (Reject("unknown tenant", requeue=False), "REJECTED", 0),
        (Retry("later"), "RETRY", 0),
        ("retry()", "RETRY", 1),
        (MaxRetriesExceededError("enough"), "FAILURE", 0),
        (SoftTimeLimitExceeded(), "FAILURE", 0),
    ],
    ids=["Ignore", "Reject", "Retry", "retry()", "MaxRetriesExceeded", "SoftTimeLimitExceeded"],
)
def test_what_ends_a_body_ends_the_task_there_too(
    desk: Desk, make: Make, plans: Plans, end_of_it: Any, state: str, comes_again: int, woken: bool
) -> None:
    others = fill(desk, 2, 2) if woken else []
    load = make()
    load.delay(1)
    if woken:
        desk.deliver()
        end(desk, others.pop())
    plans.limit = end_of_it
    ended: list[str] = []

    def note(sender: Any, state: str, **_: Any) -> None:
        ended.append(state)

    signals.task_postrun.connect(note)
    desk.deliver()

    assert (ended, desk.ran, desk.size()) == ([state], [], comes_again)
    for other in others:
        end(desk, other)
    assert nothing_is_left(desk, KEY)
    plans.limit = 2
    assert [desk.run(desk.receive()).headers["retries"] for _ in range(comes_again)] in ([], [1])
    assert desk.ran == [1] * comes_again


@pytest.mark.parametrize("limit", [AWAY, 0])
def test_the_warning_names_the_function_once_and_a_child_says_it_too(
    desk: Desk, make: Make, plans: Plans, limit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    desk.patch.setattr(taking, "_limits_unknown", {})
    desk.patch.setattr(_Spokesman, "pid", 1)
    plans.limit = limit
    load = make()
    for number in range(3):
        load.delay(number)
        desk.deliver()

    (warning,) = [line for line in caplog.records if line.levelname == "WARNING"]
    assert "task load: what Plans() says for 'tenant:7'" in warning.getMessage()
    assert (warning.exc_info is not None) == (limit is AWAY)


@pytest.mark.parametrize("eager", [False, True])
def test_who_cannot_be_put_off_gets_the_error(
    desk: Desk, make: Make, plans: Plans, eager: bool
) -> None:
    plans.limit = AWAY
    load = make()

    with pytest.raises(ConfigurationError, match=r"Plans.. says .* raised OSError: the table") as e:
        load.apply((1,)).get(disable_sync_subtasks=False) if eager else load(1)

    assert eager or e.value.__cause__ is AWAY
    assert desk.ran == []


def test_an_error_callback_without_a_limit_is_sent_as_a_message(desk: Desk, plans: Plans) -> None:
    def limit(request: Any, exc: Any, traceback: Any) -> Any:
        return plans(1)

    @desk.locked(Limit("callback", limit), name="tell")
    def tell(request: Any, exc: Any, traceback: Any) -> None:
        desk.ran.append(str(exc))

    @desk.app.task(name="fails")
    def fails() -> None:
        raise ValueError("declined")

    plans.limit = AWAY
    fails.apply_async(link_error=tell.s())
    desk.deliver()
    assert (desk.ran, desk.size()) == ([], 1)

    plans.limit = 2
    desk.deliver()
    assert desk.ran == ["declined"]


def test_a_unique_task_that_is_put_off_still_lives(desk: Desk, make: Make, plans: Plans) -> None:
    plans.limit = AWAY
    load = make(unique="done")
    first = load.delay(1)
    desk.deliver()

    assert load.delay(1).id == first.id
    plans.limit = 2
    desk.deliver_all()
    assert desk.ran == [1]
    assert load.delay(1).id != first.id


@pytest.mark.parametrize("limit", [0, *TOO_MANY], ids=quoted)
def test_a_number_that_is_no_limit_is_an_error_of_the_definition(
    desk: Desk, make: Make, limit: int
) -> None:
    for define in (make, lambda key: lock(key, app=desk.app)):
        with pytest.raises(ConfigurationError, match="a number from 1 to 1,000,000, or in a task"):
            define(Limit("k", limit))


@pytest.mark.every_store
def test_every_store_keeps_the_largest_limit(desk: Desk, make: Make, plans: Plans) -> None:
    (other,) = fill(desk, 1, 1)
    plans.limit = LARGEST_LIMIT
    make().delay(1)
    desk.deliver()

    assert (desk.ran, desk.store.peek(KEY).holders[0].limit) == ([1], LARGEST_LIMIT)
    end(desk, other)


@pytest.mark.parametrize("policy", ["ordered", "queue"])
def test_it_is_asked_when_the_turn_comes_and_never_as_the_task_is_published(
    desk: Desk, make: Make, plans: Plans, policy: Any
) -> None:
    plans.limit = 2
    load = make(on_contention=policy)
    for number in range(4):
        load.delay(number)
    assert plans.asked == []

    desk.deliver_all()

    assert (desk.ran, sorted(set(plans.asked))) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_published_in_order_the_first_whose_turn_comes_lets_in_the_others(
    desk: Desk, plans: Plans
) -> None:
    plans.limit = 3

    @desk.locked(Limit("tenant:{t}", plans), name="load", on_contention=Ordered())
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
    with pytest.raises(ConfigurationError, match=r"task load: limit <lambda>.. is called as the"):
        make(Limit("tenant:{t}", lambda tenant, number, t: 3))


def test_a_block_has_no_call_of_which_a_function_could_say_the_limit(
    desk: Desk, plans: Plans
) -> None:
    with pytest.raises(ConfigurationError, match=r"n of a Limit is a number in lock.."):
        lock([Limit("a", plans)], app=desk.app)


def test_it_is_an_attribute_of_a_task_class_as_well(desk: Desk) -> None:
    def two(number: int) -> int:
        return 2

    @desk.app.task(base=LockedTask, lock_key=Limit("k", two), name="attribute")
    def attribute(number: int) -> None:
        desk.ran.append([holder.limit for holder in desk.store.peek("k").holders])

    attribute.delay(1)
    desk.deliver()

    assert desk.ran == [[2]]
