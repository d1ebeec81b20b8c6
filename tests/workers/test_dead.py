"""Messages that nobody can run: dead-lettered, visible, and never in the way of the others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, RecoverableConnectionError
from botocore.exceptions import ClientError
from celery import states
from celery.exceptions import TaskRevokedError
from celery.worker import state as worker_state
from kombu.exceptions import OperationalError
from kombu.message import Message
from kombu.messaging import Producer

from celery_dlock import BackendUnavailable, LockedTask, LockLost, lock, operate
from celery_dlock.core.events import DeadLettered
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, Claim, Outcome, WaitMode
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.messages.refusals import ALONE
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from celery_dlock.worker.request import dead_letter_rejected, dead_letter_unknown
from tests.services.desk import Desk
from tests.workers.conftest import nothing_is_left, revoke

pytestmark = pytest.mark.stores

KEY = "order:42"
AN_HOUR = 3600


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention="queue", max_retries=0)
    def charge(order: str, number: int = 0) -> int:
        return number

    return charge


def called_again(desk: Desk, clock: ManualClock) -> Message | None:
    """Let the time pass after which an unanswered call is repeated; what is published then."""
    desk.passes(AN_HOUR)
    return desk.take()


class Consumer:
    """As much of Celery's consumer as its signals are sent with."""

    def __init__(self, app: Any) -> None:
        self.app = app


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("receiver", "cause"),
    [(dead_letter_unknown, Cause.UNKNOWN_TASK), (dead_letter_rejected, Cause.UNREADABLE)],
    ids=["a task that no worker knows", "a message that is refused"],
)
def test_after_some_wakes_it_is_dead_lettered_and_the_next_one_runs(
    desk: Desk, charge: LockedTask, clock: ManualClock, receiver: Any, cause: Cause
) -> None:
    # Given two tasks that wait for a key
    useless, useful = charge.delay("42", 1), charge.delay("42", 2)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

    # When the worker that is sent the first can do nothing with it, again and again
    message = desk.take()
    for calls in range(1, WAKES_BEFORE_DEAD + 1):
        assert message is not None
        assert message.headers["id"] == useless.id
        assert desk.store.dead() == []
        receiver(sender=Consumer(desk.app), message=message, name="charge", id=useless.id)
        message = called_again(desk, clock) if calls < WAKES_BEFORE_DEAD else desk.take()

    (letter,) = desk.store.dead()
    assert (letter.key, letter.dead.task, letter.dead.cause) == (KEY, f"{useless.id}:0:0", cause)
    assert [event.cause for event in desk.happened(DeadLettered)] == [cause]
    assert message is not None
    desk.run(message)
    assert useful.get() == 2


@pytest.mark.parametrize(
    "nonsense",
    [
        b"nothing that anybody could read",
        b'{"schema":1,"headers":null}\n[]',
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"\n[]",
    ],
    ids=["no message", "without headers", "nested too deep"],
)
def test_what_lies_in_the_store_and_is_no_message_is_dead_lettered(
    desk: Desk, charge: LockedTask, clock: ManualClock, nonsense: bytes
) -> None:
    broken = Claim(KEY, "broken:0:0", "1", ttl=1, wait=WaitMode.QUEUE)
    useful = charge.delay("42", 2)
    with lock(KEY, app=desk.app, timeout=0):
        desk.store.enter(broken, nonsense)
        desk.deliver()
    for _ in range(WAKES_BEFORE_DEAD):
        message = called_again(desk, clock)

    assert [letter.dead.cause for letter in desk.store.dead()] == [Cause.UNREADABLE]
    assert message is not None
    desk.run(message)
    assert useful.get() == 2


class Refuses:
    """A producer whose broker refuses the messages of some tasks, and takes all others."""

    connection = SimpleNamespace(transport=None)

    def __init__(self, error: Exception, *task_ids: str) -> None:
        self.error, self.task_ids = error, task_ids

    def publish(self, *_: Any, headers: Any, **__: Any) -> None:
        if headers["id"] in self.task_ids:
            raise self.error


def by_sqs(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}}, "SendMessage")


def woken_again(
    desk: Desk, clock: ManualClock, producer: Refuses, times: int = WAKES_BEFORE_DEAD
) -> None:
    """Sweep, publishing with *producer*, until something is dead, so many *times* at the most."""
    for _ in range(times):
        assert desk.store.dead() == []
        clock.advance(AN_HOUR)
        runtime(desk.app).wake(desk.store.sweep().wakes, producer)
        if desk.store.dead():
            break


@pytest.mark.parametrize(
    ("error", "dead"),
    [
        (NotFound("no exchange"), True),
        (PreconditionFailed("message size is larger than configured"), True),
        (TypeError("a property"), True),
        (by_sqs("InvalidParameterValue"), True),
        (by_sqs("RequestThrottled"), False),
        (OperationalError("away"), False),
        (ConnectionResetError("away"), False),
        (RecoverableConnectionError("away"), False),
        (AccessRefused("to this process"), False),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else None,
)
def test_a_message_that_cannot_be_published_is_dead_lettered_and_not_for_want_of_a_broker(
    desk: Desk, charge: LockedTask, clock: ManualClock, error: Exception, dead: bool
) -> None:
    # Given two tasks that wait for a key, And the first is woken
    first, second = charge.delay("42", 1), charge.delay("42", 2)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()
    assert desk.take() is not None

    # When it cannot be published, again and again
    woken_again(desk, clock, Refuses(error, first.id))

    causes = [(b.dead.task, b.dead.cause) for b in desk.store.dead()]
    assert causes == ([(f"{first.id}:0:0", Cause.UNPUBLISHABLE)] if dead else [])
    # Then its result says why, And it is the turn of the next one
    assert first.state == (states.FAILURE if dead else states.PENDING)
    assert not dead or "the broker refuses it" in str(first.result)
    again = called_again(desk, clock)
    assert again is not None
    assert again.headers["id"] == (second if dead else first).id


def test_a_message_that_fails_alone_is_dead_lettered_whatever_the_error(
    desk: Desk, charge: LockedTask, clock: ManualClock
) -> None:
    # Given a task that waits for each of two keys, And both are woken
    odd, sound = charge.delay("41"), charge.delay("42")
    with lock("order:41", app=desk.app, timeout=0), lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        desk.deliver()

    # When nothing can be published, Then nothing is dead, however often
    error = RuntimeError("nobody knows")
    woken_again(desk, clock, Refuses(error, odd.id, sound.id), ALONE + 1)
    assert desk.store.dead() == []

    # But one of which only the messages of others can be published is
    woken_again(desk, clock, Refuses(error, odd.id), ALONE + 1)
    assert [b.dead.task for b in desk.store.dead()] == [f"{odd.id}:0:0"]


def test_an_ordered_call_that_is_refused_and_not_taken_back_is_a_dead_letter(
    desk: Desk, make_ordered: Callable[..., LockedTask], clock: ManualClock
) -> None:
    # Given a broker that refuses a call whose turn comes at once
    refuses, whole = Refuses(by_sqs("InvalidParameterValue"), "large"), Producer.publish
    desk.patch.setattr(Producer, "publish", refuses.publish)
    # And a store that does not answer when the message is to be taken back
    leave = desk.store.leave
    desk.patch.setattr(desk.store, "leave", Mock(side_effect=BackendUnavailable("away")))
    # When it is published, Then its publisher hears of it
    charge = make_ordered()
    with pytest.raises(ClientError):
        charge.apply_async(("42", 1), task_id="large")
    desk.patch.setattr(desk.store, "leave", leave)
    # And the key goes on after a few wakes
    sound = charge.apply_async(("42", 2))
    woken_again(desk, clock, refuses)
    assert [letter.dead.task for letter in desk.store.dead()] == ["large:0:0"]
    desk.patch.setattr(Producer, "publish", whole)
    desk.passes(AN_HOUR)
    desk.deliver()
    assert (sound.get(), desk.ran) == (2, [2])


def cancel(desk: Desk, task_id: str) -> None:
    assert operate.cancel(task_id, app=desk.app)


@pytest.mark.parametrize("ends", [revoke, cancel])
def test_what_is_revoked_ends_though_the_broker_refuses_its_message(
    desk: Desk, ends: Callable[[Desk, str], None]
) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="queue", unique="done")
    def charge(order: str) -> None: ...

    waits = charge.delay("42")
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
        refuses = Refuses(by_sqs("MissingParameter"), waits.id)
        desk.patch.setattr(Producer, "publish", refuses.publish)
        ends(desk, waits.id)
    assert waits.state == states.REVOKED
    assert nothing_is_left(desk)
    assert (desk.store.dead(), desk.store.swapped()) == ([], [])


def test_a_task_whose_runs_are_lost_again_and_again_fails_and_its_message_is_kept(
    desk: Desk, charge: LockedTask
) -> None:
    # Given a task that has killed its worker ten times
    result = charge.delay("42", 7)
    message = desk.receive()
    for run in range(MAX_LOST_RUNS):
        deadly = Claim(KEY, f"{result.id}:0:0", f"run {run}", ttl=10**9)
        desk.store.enter(deadly)
        desk.store.leave(deadly, Outcome.ABANDONED)

    # When it is delivered once more, Then it does not run
    desk.run(message)
    assert message.acknowledged
    assert result.state == states.FAILURE
    assert isinstance(result.result, LockLost)
    assert desk.holders(KEY) == []
    assert [event.cause for event in desk.happened(DeadLettered)] == [Cause.RUNS_LOST]

    # But a person can let it run again
    (letter,) = desk.store.dead()
    runtime(desk.app).wake(desk.store.apply(Replay(KEY, letter.dead.task)).wakes)
    desk.deliver()
    assert desk.result(result.id).get() == 7
    assert desk.store.dead() == []


def test_a_finished_task_that_is_published_again_is_dropped_until_it_is_replayed(
    desk: Desk,
) -> None:
    @desk.locked("order:{order}", name="notes", on_contention="queue")
    def notes(order: str, number: int) -> None:
        desk.ran.append(number)

    # Given a task that is done
    result = notes.delay("42", 1)
    desk.deliver()

    # When it is published again under its id, Then it is dropped
    notes.apply_async(("42", 2), task_id=result.id)
    desk.deliver()
    assert desk.ran == [1]

    # When a person says that it may, Then it runs
    assert not desk.store.apply(Replay(KEY, f"{result.id}:0:0")).verdict
    notes.apply_async(("42", 3), task_id=result.id)
    desk.deliver()
    assert desk.ran == [1, 3]


def test_a_message_that_never_waited_is_none_of_ours(desk: Desk, charge: LockedTask) -> None:
    charge.delay("42")
    message = desk.receive()

    dead_letter_unknown(sender=Consumer(desk.app), message=message, name="charge", id="id")

    assert desk.store.dead() == []


def test_what_was_revoked_ends_as_revoked_when_it_is_replayed(
    desk: Desk, charge: LockedTask, clock: ManualClock
) -> None:
    result = charge.delay("42", 1)
    with lock(KEY, app=desk.app, timeout=0):
        desk.deliver()
    here = runtime(desk.app)
    while not desk.store.dead():
        here.wake.dead_letter(KEY, f"{result.id}:0:0", "charge", Cause.UNKNOWN_TASK)
        called_again(desk, clock)
    while desk.take():
        """They came before it was dead."""

    worker_state.revoked.add(result.id)
    here.wake(desk.store.apply(Replay(KEY, f"{result.id}:0:0")).wakes)
    with pytest.raises(TaskRevokedError):
        desk.deliver()
    worker_state.revoked.discard(result.id)

    assert result.state == states.REVOKED
    assert desk.store.dead() == []
    assert charge("42", 2) == 2
