"""Over Amazon SQS: what it refuses, and what is of one publish and not of the message."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from celery import states
from kombu.exceptions import OperationalError

from celery_dlock import LockedTask, Ordered
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.runtime import forget
from celery_dlock.testing import ManualClock, held_by_another
from tests.services.brokers import close
from tests.services.desk import Desk, open_desk
from tests.services.sqs import SqsServer
from tests.workers.conftest import nothing_is_left

pytestmark = [pytest.mark.once, pytest.mark.slow]

KEY = "order:42"
FIFO = "orders.fifo"

#: More than a queue of SQS takes, once it is encoded for it; and less.
TOO_LARGE, LARGE = "y" * 900_000, "y" * 500_000


@pytest.fixture
def desk(sqs_server: SqsServer) -> Iterator[Desk]:
    options = {"fetch_message_attributes": ["MessageGroupId", "MessageDeduplicationId"]}
    with open_desk(**sqs_server.broker(**options)) as desk:
        yield desk
        forget(desk.app)
        close(desk.app)


@pytest.fixture
def charge(desk: Desk) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention=Ordered())
    def charge(order: str, number: int = 0) -> int:
        return number

    return charge


@pytest.mark.parametrize("taken", [False, True])
def test_the_publisher_of_an_ordered_call_learns_at_once_that_it_is_too_large(
    desk: Desk, charge: LockedTask, taken: bool
) -> None:
    if taken:
        with held_by_another(KEY, app=desk.app), pytest.raises(ClientError, match="shorter than"):
            charge.apply_async(("42",), headers={"pad": TOO_LARGE})
    else:
        with pytest.raises(ClientError, match="shorter than"):
            charge.apply_async(("42",), headers={"pad": TOO_LARGE})
    assert nothing_is_left(desk)
    assert charge.apply_async(("42", 7), headers={"pad": LARGE})
    desk.deliver()
    assert desk.take() is None


def test_the_publisher_whose_turn_has_come_gets_any_refusal(desk: Desk, charge: LockedTask) -> None:
    with pytest.raises(OperationalError, match="MessageGroupId"):
        charge.apply_async(("42",), MessageGroupId=7)
    assert nothing_is_left(desk)


def test_what_is_refused_when_its_turn_comes_is_a_dead_letter_that_says_why(
    desk: Desk, charge: LockedTask, clock: ManualClock
) -> None:
    # Given a message that waits, of which nobody knows that SQS refuses it
    with held_by_another(KEY, app=desk.app):
        wrong = charge.apply_async(("42", 1), MessageGroupId=7)
        sound = charge.delay("42", 2)
    # When it is woken again and again
    for _ in range(WAKES_BEFORE_DEAD - 1):
        assert desk.store.dead() == []
        desk.passes(600)
    # Then its result says why, And the next one runs
    assert wrong.state == states.FAILURE
    assert "MessageGroupId" in str(wrong.result)
    desk.deliver()
    assert sound.get() == 2


def attributes(message: Any) -> dict[str, str]:
    of_message: dict[str, str] = message.properties["delivery_info"]["sqs_message"]["Attributes"]
    return of_message


def test_a_wake_has_the_group_of_the_message_and_a_deduplication_id_of_its_own(
    desk: Desk, clock: ManualClock
) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="queue")
    def charge(order: str) -> None: ...

    # Given a message that is parked
    charge.apply_async(("42",), queue=FIFO, MessageGroupId="42", MessageDeduplicationId="paid")
    first = desk.channel.basic_get(FIFO)
    with held_by_another(KEY, app=desk.app):
        desk.run(first)
    # When it is woken, and once more
    woken = desk.channel.basic_get("orders.woken.fifo")
    woken.ack()
    desk.passes(60)
    again = desk.channel.basic_get(FIFO)
    # Then SQS cannot take one for another
    sent = [attributes(message) for message in (first, woken, again)]
    assert [one["MessageGroupId"] for one in sent] == ["42"] * 3
    assert len({one["MessageDeduplicationId"] for one in sent}) == 3


def test_a_reschedule_has_the_group_of_the_message(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="reschedule")
    def charge(order: str) -> None: ...

    charge.apply_async(("42",), queue=FIFO, MessageGroupId="42")
    with held_by_another(KEY, app=desk.app):
        desk.run(desk.channel.basic_get(FIFO))
    assert attributes(desk.channel.basic_get(FIFO))["MessageGroupId"] == "42"


def test_a_delay_is_waited_for_once(desk: Desk, charge: LockedTask) -> None:
    # Given an ordered call that is to come later: like a countdown it does not wait in the store
    with held_by_another(KEY, app=desk.app):
        charge.apply_async(("42",), DelaySeconds=1)
        assert nothing_is_left(desk) is False
        assert desk.store.peek(KEY).waiting == ()
        # When it comes and is parked
        message = None
        while message is None:
            message = desk.take()
        desk.run(message)
    # Then it is woken without a delay
    assert desk.take() is not None
