"""No wait outlasts the broker's visibility timeout: a message would be delivered while it waits."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Run
from celery_dlock.messages.countdown import visibility_timeout
from celery_dlock.runtime import runtime
from tests.services.desk import open_desk


@pytest.mark.parametrize(
    ("broker", "options", "expected"),
    [
        ("redis://h/1", {}, 3600.0),
        ("rediss://h/1", {}, 3600.0),
        (["redis://a/1", "redis://b/1"], {}, 3600.0),
        ("sqs://", {}, 1800.0),
        ("redis://h/1", {"visibility_timeout": 40}, 40.0),
        ("some+other://h", {"visibility_timeout": 40}, 40.0),
        ("amqp://h", {}, math.inf),
    ],
)
def test_it_is_the_brokers_own_unless_set(
    broker: Any, options: dict[str, Any], expected: float
) -> None:
    app = Celery(set_as_current=False, broker=broker)
    app.conf.broker_transport_options = options
    assert visibility_timeout(app) == expected


def test_a_copy_of_a_running_task_comes_back_before_it_would_be_delivered_again() -> None:
    with open_desk(broker_transport_options={"visibility_timeout": 8}) as desk:

        @desk.locked("order:{order}", name="charge")
        def charge(order: str) -> None: ...

        # Given a delivery that runs in another worker, with a lease of fifty seconds
        other = Claim("order:42", "one:0:0", "other", 50_000_000)
        assert isinstance(runtime(desk.app).backend.enter(other).verdict, Run)
        # When a second one comes
        charge.apply_async(("42",), task_id="one")
        before = datetime.now(UTC)
        desk.deliver()
        after = datetime.now(UTC)
        # Then it is put back for half the visibility timeout, not for the rest of the lease
        again = desk.take()
        assert again is not None
        due = datetime.fromisoformat(again.headers["eta"])
        assert before + timedelta(seconds=2) < due <= after + timedelta(seconds=4)


@pytest.mark.parametrize(
    ("broker", "options", "config", "expected"),
    [
        ("redis://h/1", {}, {}, 7200),
        ("redis://h/1", {"visibility_timeout": 40}, {}, 7200),
        ("redis://h/1", {"visibility_timeout": 43_200}, {}, 86_400),
        ("amqp://h", {}, {}, 7200),
        ("redis://h/1", {"visibility_timeout": 43_200}, {"dlock_done_ttl": 7200}, 7200),
        ("redis://h/1", {}, {"dlock_done_ttl": 0}, 0),
    ],
)
def test_a_finished_task_is_remembered_for_as_long_as_a_copy_of_it_may_be_delivered(
    broker: str, options: dict[str, Any], config: dict[str, Any], expected: int
) -> None:
    app = Celery(set_as_current=False, broker=broker)
    app.conf.update(dlock_url="memory://", broker_transport_options=options, **config)
    assert runtime(app).done_ttl(queues=False) == expected * SECOND
