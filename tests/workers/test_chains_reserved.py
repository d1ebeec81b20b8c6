"""``reserve="chain"``: between a task and the next step of its chain nobody else has their key."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import chain, chord, group
from celery.exceptions import Ignore, Reject
from kombu.message import Message

from celery_dlock import (
    BackendUnavailable,
    FullJitter,
    Limit,
    LockedTask,
    Ordered,
    Queue,
    Reschedule,
    Shared,
    Wait,
)
from celery_dlock.core.events import Acquired, Deduplicated, TooLarge, Unreserved
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Grant, Outcome
from celery_dlock.delivery import taking
from celery_dlock.messages.headers import next_in_chain
from celery_dlock.publishing import outbox
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock, held_by_another
from celery_dlock.worker.request import dead_letter_unknown
from tests.services.desk import Desk
from tests.services.losing import lose
from tests.workers.conftest import received, revoke

pytestmark = pytest.mark.stores

KEY = "order:42"
CHAIN: dict[str, Any] = {"reserve": "chain", "on_contention": "fail"}
SOON = Reschedule(backoff=FullJitter(base=0.1, cap=0.1))
EVERY_POLICY = ["fail", "skip", SOON, Wait(timeout=0.1), "queue", Ordered()]
EVERY_POLICY += [Queue(keep=True), "replace"]

Step = Callable[..., LockedTask]


@pytest.fixture
def step(desk: Desk) -> Step:
    """Makes a task that notes its name, and then calls *during* with itself."""

    def make(
        name: str, key: Any = "order:{order}", during: Callable[..., Any] | None = None, **how: Any
    ) -> LockedTask:
        @desk.locked(key, name=name, bind=True, **(CHAIN | how))
        def body(self: LockedTask, order: str) -> Any:
            desk.ran.append(name)
            return None if during is None else during(self)

        return body

    return make


@pytest.fixture
def before_the_release(desk: Desk) -> Callable[[Callable[[], object]], None]:
    """Has something happen as a task is about to release its keys, once."""

    def patch(happen: Callable[[], object]) -> None:
        manager = runtime(desk.app).manager
        release = manager.release

        def happen_first(*args: Any) -> bool:
            desk.patch.setattr(manager, "release", release)
            happen()
            return release(*args)

        desk.patch.setattr(manager, "release", happen_first)

    return patch


def redelivered(message: Message) -> Message:
    """The same, as a broker delivers it once more."""
    again = copy(message)
    again._state = "RECEIVED"
    setattr(again, "ack_log_error", lambda *_, **__: None)  # noqa: B010
    again.delivery_info = {**message.delivery_info, "redelivered": True}
    return again


def turns(desk: Desk, *keys: str) -> list[Grant]:
    return [grant for key in keys or (KEY,) for grant in desk.store.peek(key).grants]


def nothing_is_kept(desk: Desk, *keys: str) -> bool:
    states = [desk.store.peek(key) for key in keys or (KEY,)]
    return not any(state.holders or state.grants or state.parked for state in states)


@pytest.mark.every_store
@pytest.mark.parametrize("policy", EVERY_POLICY, ids=repr)
def test_nobody_comes_between_two_steps_whatever_the_policy(
    desk: Desk, step: Step, before_the_release: Any, policy: Any
) -> None:
    # Given strangers that ask before a step has left, and between two steps
    stranger = step("stranger", on_contention=policy, reserve=None)
    steps = [step(name, on_contention=policy) for name in ("fetch", "load", "report")]

    def strangers_come() -> None:
        others = [desk.take() for _ in range(desk.size())]
        stranger.delay("42")
        for message in [desk.take(), *others]:
            if message is not None:
                desk.run(message)

    chain(task.si("42") for task in steps).delay()
    message = desk.receive()
    for _ in steps[1:]:
        before_the_release(strangers_come)
        desk.run(message)
        message = desk.receive()  # what is woken comes first
        strangers_come()
    desk.run(message)
    desk.deliver_all(100)

    assert desk.ran[:3] == ["fetch", "load", "report"]
    assert nothing_is_kept(desk)
    tokens = [event.tokens for event in desk.happened(Acquired)]
    assert tokens == sorted(tokens)


#: What the next step wants beside the key that is kept, and the key that somebody else has then.
MORE: dict[str, tuple[dict[str, Any], str]] = {
    "later": ({"key": ["order:{order}", "shop:7"]}, "shop:7"),
    "earlier": ({"key": ["customer:7", "order:{order}"]}, "customer:7"),
    "to read": ({"key": ["order:{order}", Shared("shop:7")]}, "shop:7"),
    "limit": ({"key": ["order:{order}", Limit("shop:7", 2)]}, "shop:7"),
}


@pytest.mark.every_store
@pytest.mark.parametrize("policy", ["queue", SOON, Wait(timeout=30), "replace"], ids=repr)
@pytest.mark.parametrize("more", MORE)
def test_the_key_is_kept_while_the_next_step_waits_for_another(
    desk: Desk, step: Step, more: str, policy: Any
) -> None:
    # Given a chain whose second step finds another of its keys taken, and strangers that ask
    how, another = MORE[more]
    stranger = step("stranger", on_contention="queue", reserve=None)
    chain(step("fetch").si("42"), step("load", on_contention=policy, **how).si("42")).delay()
    desk.deliver()
    another_has_it = ExitStack()
    another_has_it.enter_context(held_by_another(another, app=desk.app))

    def strangers_come(*_: Any) -> None:
        stranger.delay("42")
        while (message := desk.take()) is not None and message.headers["task"] == "stranger":
            desk.run(message)
        if message is not None:  # the step, which is put back for its turn
            put_back = cast("Any", message)
            put_back.reject(requeue=True)
        if isinstance(policy, Wait):
            another_has_it.close()

    with another_has_it:
        # When it is refused, and looks again
        clock = SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=strangers_come)
        desk.patch.setattr(taking, "time", clock)
        desk.deliver()
        strangers_come()
    desk.deliver_all(100)

    assert desk.ran[:2] == ["fetch", "load"]
    assert "stranger" in desk.ran
    assert nothing_is_kept(desk, KEY, another)


def test_of_two_chains_that_wait_for_each_other_the_later_gives_its_key_up(
    desk: Desk, step: Step
) -> None:
    one = step("one", "a:{order}")
    both = step("both", ["a:{order}", "b:{order}"], on_contention="queue")
    three = step("three", "b:{order}")
    first, second = chain(one.si("1"), both.si("1")), chain(three.si("1"), both.si("1"))
    ids = [canvas.apply_async().id for canvas in (first, second)]
    for message in [desk.receive(), desk.receive()]:  # each keeps its key for the next step
        desk.run(message)

    desk.deliver_all(100)

    assert desk.ran == ["one", "three", "both", "both"]
    (event,) = desk.happened(Unreserved)
    assert (event.subject.task_id, event.key, event.another) == (ids[1], "b:1", "a:1")
    assert nothing_is_kept(desk, "a:1", "b:1")


def test_its_next_step_is_in_the_store_and_woken_by_the_release(
    desk: Desk, step: Step, before_the_release: Any
) -> None:
    seen: list[Any] = []
    result = chain(step("fetch").si("42"), step("load").si("42")).delay()

    before_the_release(lambda: seen.append((desk.size(), desk.store.peek(KEY).parked)))
    desk.deliver()

    assert seen == [(0, 1)]
    (turn,) = turns(desk)
    assert (turn.parked, turn.ordered) == (True, True)
    assert desk.deliver().headers["id"] == result.id
    assert desk.ran == ["fetch", "load"]
    assert nothing_is_kept(desk)


def test_who_lost_a_run_and_stands_first_does_not_come_between(
    desk: Desk, step: Step, before_the_release: Any
) -> None:
    stranger = step("stranger", on_contention="queue", reserve=None)
    stranger.apply_async(("42",), task_id="lost")
    lost = desk.receive()
    claim = Claim(KEY, "lost:0:0", "gone", ttl=30 * SECOND)
    desk.store.enter(claim)
    desk.store.leave(claim, Outcome.ABANDONED)

    chain(step("fetch").si("42"), step("load").si("42")).delay()
    before_the_release(lambda: desk.run(lost))
    desk.deliver_all()

    assert desk.ran == ["fetch", "load", "stranger"]


@pytest.mark.parametrize("late", [True, False])
def test_a_process_that_ends_before_the_release_leaves_the_key_to_the_next_step(
    desk: Desk, clock: ManualClock, step: Step, late: bool
) -> None:
    # Given a first step whose process is killed after its next one was published, and a stranger
    # that has waited for longer
    stranger = step("stranger", on_contention="queue", reserve=None)

    def stranger_waits(_: LockedTask) -> None:
        if desk.ran == ["fetch"]:
            stranger.delay("42")
            desk.deliver()

    fetch, load = step("fetch", during=stranger_waits, acks_late=late), step("load")
    chain(fetch.si("42"), load.si("42")).delay()
    desk.patch.setattr(runtime(desk.app).manager, "release", lambda *args: True)
    message = desk.deliver()
    desk.patch.undo()

    desk.passes(31)
    if late:  # the broker delivers it again
        desk.run(redelivered(message))
    desk.deliver_all()

    assert desk.ran[:2] == ["fetch", "load"]
    assert set(desk.ran[2:]) <= {"stranger", "fetch"}
    assert "stranger" in desk.ran


def test_it_is_kept_for_a_retry_in_the_chain_too(desk: Desk, step: Step) -> None:
    def retry(task: LockedTask) -> None:
        if not task.request.retries:
            raise task.retry(countdown=30)

    stranger = step("stranger", reserve=None)
    chain(step("fetch", during=retry).si("42"), step("load").si("42")).delay()
    desk.deliver()
    again = desk.receive()
    stranger.delay("42")
    desk.deliver()
    desk.run(again)
    desk.deliver_all()

    assert desk.ran == ["fetch", "fetch", "load"]


# A next step that goes by the broker.


def with_countdown(desk: Desk, step: Step) -> Message:
    """The next step of a chain, due in half a minute, after the first one has run."""
    chain(step("fetch").si("42"), step("load").si("42").set(countdown=30)).delay()
    desk.deliver()
    message = desk.receive()
    assert message.headers["task"] == "load"
    return message


def test_the_key_is_kept_for_a_countdown_and_a_minute(
    desk: Desk, clock: ManualClock, step: Step
) -> None:
    stranger = step("stranger", reserve=None)
    with_countdown(desk, step)

    for seconds, ran in ((89, ["fetch"]), (2, ["fetch", "stranger"])):
        desk.passes(seconds)
        stranger.delay("42")
        desk.deliver()
        assert desk.ran == ran


def test_the_next_step_runs_when_it_is_due(desk: Desk, step: Step) -> None:
    desk.run(with_countdown(desk, step))

    assert desk.ran == ["fetch", "load"]
    assert nothing_is_kept(desk)


@pytest.mark.parametrize("expired", [True, False])
def test_the_key_is_free_when_such_a_step_is_not_to_run(
    desk: Desk, step: Step, expired: bool
) -> None:
    request = received(desk, with_countdown(desk, step))

    if expired:
        request._announce_revoked("expired", False, None, True)
    else:
        revoke(desk, request.id)

    assert nothing_is_kept(desk)


def test_a_store_that_is_unavailable_as_it_is_published_stops_no_chain(
    desk: Desk, step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    enter = desk.store.enter

    def no_answer(claim: Claim, *args: Any) -> Any:
        if claim.enqueues:
            raise BackendUnavailable("no answer")
        return enter(claim, *args)

    desk.patch.setattr(outbox, "_by_broker", set())
    desk.patch.setattr(desk.store, "enter", no_answer)
    chain(step("fetch").si("42"), step("load").si("42")).delay()
    desk.deliver()

    assert "it goes to the broker" in caplog.text
    assert [turn.parked for turn in turns(desk)] == [False]  # kept, for it was published
    desk.deliver()
    assert desk.ran == ["fetch", "load"]
    assert nothing_is_kept(desk)


def test_a_store_that_is_unavailable_at_the_release_leaves_it_at_the_head(
    desk: Desk, clock: ManualClock, step: Step
) -> None:
    leave = desk.store.leave

    def no_answer(*args: Any, **more: Any) -> Any:
        raise BackendUnavailable("no answer")

    stranger = step("stranger", on_contention="queue", reserve=None)
    chain(step("fetch").si("42"), step("load").si("42")).delay()
    desk.patch.setattr(desk.store, "leave", no_answer)
    desk.deliver()
    desk.patch.setattr(desk.store, "leave", leave)
    stranger.delay("42")
    desk.deliver()
    desk.passes(31)
    desk.deliver_all()

    assert desk.ran == ["fetch", "load", "stranger"]


def test_a_message_too_large_for_the_store_goes_by_the_broker(desk: Desk, step: Step) -> None:
    chain(step("fetch").si("42"), step("load").si("42")).delay()
    desk.patch.setattr(type(desk.store), "largest_message", 10)
    desk.deliver()

    (event,) = desk.happened(TooLarge)
    assert event.subject.task_name == "load"
    assert [turn.parked for turn in turns(desk)] == [False]
    desk.deliver()
    assert desk.ran == ["fetch", "load"]


# What is not reserved.


def other_key(step: Step, desk: Desk) -> Any:
    return step("other", "customer:{order}").si("42")


def no_key(step: Step, desk: Desk) -> Any:
    @desk.app.task(name="plain")
    def plain() -> None: ...

    return plain.si()


def unknown(step: Step, desk: Desk) -> Any:
    return desk.app.signature("of another version", args=("42",), immutable=True)


def raises(step: Step, desk: Desk) -> Any:
    return step("raises", key=lambda order: order.nothing).si("42")


def reader(step: Step, desk: Desk) -> Any:
    return step("reader", Shared("order:{order}"), reserve=None).si("42")


def child(step: Step, desk: Desk) -> Any:
    return step("child", ["item:{order}", Shared("order:{order}")]).si("42")


def many(step: Step, desk: Desk) -> Any:
    return step("many", Limit("order:{order}", 2), reserve=None).si("42")


def grouped(step: Step, desk: Desk) -> Any:
    return group(step("grouped").si("42"), step("beside", "customer:{order}").si("42"))


def a_chord(step: Step, desk: Desk) -> Any:
    return chord([step("header").si("42"), step("beside", "k").si("42")], step("body").si("42"))


NOT_RESERVED = [other_key, no_key, unknown, raises, reader, child, many, grouped, a_chord]


@pytest.mark.parametrize("following", NOT_RESERVED)
def test_for_such_a_next_step_nothing_is_kept(desk: Desk, step: Step, following: Any) -> None:
    chain(step("fetch").si("42"), following(step, desk)).delay()
    desk.deliver()

    assert desk.ran == ["fetch"]
    assert nothing_is_kept(desk)
    assert desk.size()


@pytest.mark.parametrize("how", ["fails", "ignores", "rejects", "skipped"])
def test_a_chain_that_does_not_go_on_keeps_nothing(desk: Desk, step: Step, how: str) -> None:
    errors = {"fails": ValueError(), "ignores": Ignore(), "rejects": Reject(requeue=False)}

    def end(_: LockedTask) -> None:
        if how in errors:
            raise errors[how]

    fetch = step("fetch", during=end, on_contention="skip")
    chain(fetch.si("42"), step("load").si("42")).delay()
    if how == "skipped":
        claim = Claim(KEY, "another", "1", ttl=30 * SECOND)
        desk.store.enter(claim)
        desk.deliver()
        desk.store.leave(claim, Outcome.DONE)
    desk.deliver_all()

    assert desk.ran == ([] if how == "skipped" else ["fetch"])
    assert nothing_is_kept(desk)


def test_a_duplicate_of_a_living_task_is_not_kept_for(desk: Desk, step: Step) -> None:
    load = step("load", unique="done")
    load.apply_async(("42",), countdown=60)
    living = desk.receive()
    chain(step("fetch").si("42"), load.si("42")).delay()
    desk.deliver()

    assert [event.published for event in desk.happened(Deduplicated)] == [True]
    assert nothing_is_kept(desk)
    desk.run(living)
    desk.deliver_all()
    assert desk.ran == ["fetch", "load"]


def test_eager_tasks_keep_nothing(desk: Desk, step: Step) -> None:
    steps = chain(step("fetch").si("42"), step("load").si("42"))
    steps.apply()
    desk.app.conf.task_always_eager = True
    steps.delay()

    assert desk.ran == ["fetch", "load"] * 2
    assert nothing_is_kept(desk)


def test_a_lease_that_was_lost_keeps_nothing(
    desk: Desk, step: Step, before_the_release: Any
) -> None:
    seen: list[Any] = []

    def lose_it(task: LockedTask) -> None:
        lose(desk.app, task.lease)

    chain(step("fetch", during=lose_it).si("42"), step("load").si("42")).delay()
    before_the_release(lambda: seen.append(desk.store.peek(KEY).parked))
    desk.deliver_all()

    assert seen == [0]

    assert desk.ran == ["fetch", "load"]
    assert nothing_is_kept(desk)


@pytest.mark.parametrize("rest", [[5], [{"options": 5}], {"a": 1}, [{"options": {"task_id": 5}}]])
def test_a_chain_that_makes_no_sense_fails_no_body(desk: Desk, step: Step, rest: Any) -> None:
    def spoil(task: LockedTask) -> None:
        task.request.chain = rest
        assert next_in_chain(task.request) is None
        task.request.chain = None

    result = step("fetch", during=spoil).delay("42")
    desk.deliver()

    assert result.state == "SUCCESS"


# How it ends.


def test_a_step_that_is_revoked_at_the_head_frees_the_key(desk: Desk, step: Step) -> None:
    stranger = step("stranger", on_contention="queue", reserve=None)
    result = chain(step("fetch").si("42"), step("load").si("42")).delay()
    desk.deliver()
    desk.receive()  # it is woken, and on its way
    stranger.delay("42")
    desk.deliver()

    revoke(desk, result.id)
    desk.store.cancel(KEY, turns(desk)[0].task)
    desk.deliver_all()

    assert desk.ran[0] == "fetch"


def test_a_step_that_has_expired_frees_the_key(desk: Desk, step: Step) -> None:
    stranger = step("stranger", on_contention="queue", reserve=None)
    load = step("load").si("42").set(expires=datetime(2001, 1, 1, tzinfo=UTC))
    chain(step("fetch").si("42"), load).delay()
    desk.deliver()
    message = desk.receive()
    stranger.delay("42")
    desk.deliver()

    received(desk, message)._announce_revoked("expired", False, None, True)
    desk.deliver_all()

    assert desk.ran == ["fetch", "stranger"]
    assert nothing_is_kept(desk)


def test_a_step_that_no_worker_knows_any_more_becomes_a_dead_letter(
    desk: Desk, clock: ManualClock, step: Step
) -> None:
    stranger = step("stranger", on_contention="queue", reserve=None)
    chain(step("fetch").si("42"), step("load").si("42")).delay()
    desk.deliver()
    stranger.delay("42")
    message = desk.receive()
    desk.deliver()
    for seconds in (6, 12, 24, 48):
        dead_letter_unknown(SimpleNamespace(app=desk.app), message, "load")
        desk.passes(seconds)
        message = desk.take() or message
    assert message.headers["task"] == "stranger"
    desk.run(message)

    assert desk.ran == ["fetch", "stranger"]
    assert nothing_is_kept(desk)


@pytest.mark.parametrize("reserves", ["chain", None])
def test_what_replaces_a_step_keeps_the_key_for_the_rest_of_the_chain(
    desk: Desk, step: Step, reserves: str | None
) -> None:
    other = step("other", reserve=reserves)

    def replace_it(task: LockedTask) -> Any:
        return task.replace(other.si("42"))

    chain(step("fetch", during=replace_it).si("42"), step("load").si("42")).delay()
    desk.deliver()
    assert nothing_is_kept(desk)
    desk.deliver()
    assert [turn.parked for turn in turns(desk)] == ([True] if reserves else [])
    desk.deliver_all()

    assert desk.ran == ["fetch", "other", "load"]


# Canvases around it.


def nested(a: Any, b: Any, c: Any) -> Any:
    return chain(a, chain(b, c))


def in_a_group(a: Any, b: Any, c: Any) -> Any:
    return group(chain(a, b, c))


def in_a_chord(a: Any, b: Any, c: Any) -> Any:
    return chord([chain(a, b)], c)


@pytest.mark.parametrize("canvas", [nested, in_a_group, in_a_chord])
def test_a_chain_within_a_canvas_is_one(desk: Desk, step: Step, canvas: Any) -> None:
    names = ("fetch", "load", "report")
    canvas(*(step(name).si("42") for name in names)).apply_async()
    desk.deliver()
    assert [turn.parked for turn in turns(desk)] == [True]
    desk.deliver_all()

    assert desk.ran == [*names]
    assert nothing_is_kept(desk)


def test_a_chain_that_is_used_twice_runs_twice(desk: Desk, step: Step) -> None:
    steps = chain(step("fetch").si("42"), step("load").si("42"))
    for _ in range(2):
        steps.delay()
        desk.deliver_all()

    assert desk.ran == ["fetch", "load"] * 2
    assert nothing_is_kept(desk)


def test_a_link_beside_the_chain_comes_after_it(desk: Desk, step: Step) -> None:
    link = step("link", on_contention="queue", reserve=None).si("42")
    chain(step("fetch").si("42").set(link=link), step("load").si("42")).delay()
    desk.deliver_all()

    assert desk.ran == ["fetch", "load", "link"]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (["a", "b"], ["b", "a"], ["a", "b"]),
        (["a", "b"], ["b", "c"], ["b"]),
        (["b"], ["a", "b"], ["b"]),
        ([Limit("a", 2), "b"], ["b", Limit("a", 2)], ["a", "b"]),
        (["a", Shared("b")], ["a", Shared("b")], ["a"]),
    ],
    ids=repr,
)
def test_of_several_keys_those_are_kept_that_both_have(
    desk: Desk, step: Step, first: Any, second: Any, kept: list[str]
) -> None:
    chain(step("fetch", first).si("42"), step("load", second).si("42")).delay()
    desk.deliver()

    assert [key for key in "abc" if turns(desk, key)] == kept
    assert sum(turn.parked for turn in turns(desk, *"abc")) == 1
    desk.deliver()
    assert desk.ran == ["fetch", "load"]
    assert nothing_is_kept(desk, *"abc")


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_step_that_another_key_refuses_leaves_those_that_were_kept(
    desk: Desk, step: Step, policy: str
) -> None:
    load = step("load", ["a", "b", "c"], on_contention=policy)
    chain(step("fetch", ["b", "c"]).si("42"), load.si("42")).delay()
    desk.deliver()
    desk.store.enter(Claim("a", "another", "1", ttl=30 * SECOND))
    desk.deliver()

    assert desk.ran == ["fetch"]
    assert nothing_is_kept(desk, "b", "c")


# Deliveries that come twice.


def test_a_first_step_that_runs_twice_keeps_nothing_for_what_is_done(
    desk: Desk, clock: ManualClock, step: Step
) -> None:
    keys = ["a", "b"]
    fetch = step("fetch", keys, acks_late=True)
    chain(fetch.si("42"), step("load", keys).si("42")).delay()
    message = desk.receive()
    desk.patch.setattr(runtime(desk.app).manager, "release", lambda *args: True)
    desk.run(message)
    desk.patch.undo()
    desk.passes(31)
    desk.deliver()  # the next step
    assert desk.ran == ["fetch", "load"]

    desk.run(redelivered(message))

    assert desk.ran == ["fetch", "load", "fetch"]
    assert desk.size() == 0
    assert nothing_is_kept(desk, *keys)


def test_a_next_step_that_comes_twice_runs_once(desk: Desk, step: Step) -> None:
    chain(step("fetch").si("42"), step("load", acks_late=True).si("42")).delay()
    desk.deliver()
    message = desk.deliver()

    desk.run(redelivered(message))

    assert desk.ran == ["fetch", "load"]
    assert nothing_is_kept(desk)
