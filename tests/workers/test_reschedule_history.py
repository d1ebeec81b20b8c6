"""What a rescheduled message knows of its past, and what people see of it meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_dlock import LockedTask, LockLost, Reschedule, lock
from tests.services.desk import Desk
from tests.workers.conftest import refused


def test_the_header_counts_the_waits_and_keeps_the_first_refusal(
    desk: Desk, charge: LockedTask
) -> None:
    charge.apply_async(("42",))

    _, second = refused(desk)
    with lock("order:42", app=desk.app, timeout=0):
        desk.run(second)
    third = desk.take()

    assert third is not None
    assert second.headers["dlock"]["waits"] == 1
    assert third.headers["dlock"]["waits"] == 2
    assert second.headers["dlock"]["since"] == third.headers["dlock"]["since"] is not None


def test_what_waits_again_after_a_lost_run_has_waited_since_its_first_refusal(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge", on_contention="queue")
    def charge(order: str) -> None:
        raise LockLost("order:42")

    charge.delay("42")
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
    first = desk.deliver()
    again = desk.take()

    assert again is not None
    assert again.headers["dlock"]["since"] == first.headers["dlock"]["since"] is not None


def test_the_refusals_of_an_older_attempt_do_not_count(desk: Desk) -> None:
    @desk.locked("order:{order}", name="twice", bind=True)
    def twice(self: Any, order: str) -> int:
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return int(self.request.retries)

    result = twice.apply_async(("42",))
    _, again = refused(desk)
    assert again.headers["dlock"]["waits"] == 1

    # When the body retries, and the retried message is refused in its turn
    desk.run(again)
    _, retried = refused(desk)

    # Then it was refused once, not twice
    assert retried.headers["retries"] == 1
    assert retried.headers["dlock"]["waits"] == 1
    assert retried.headers["dlock"]["since"] > again.headers["dlock"]["since"]
    desk.run(retried)
    assert result.get() == 1


def test_each_delivery_is_one_of_its_own_whatever_a_header_says(desk: Desk) -> None:
    owners = []

    @desk.locked("order:{order}", name="owner", bind=True)
    def owner(self: Any, order: str) -> None:
        owners.append(self.lease.owner)

    for _ in range(2):
        forged = {"dlock_delivery": {"nonce": "of another", "content_type": "application/json"}}
        owner.apply_async(("42",), headers=forged)
    desk.deliver_all()

    assert len(set(owners)) == 2
    assert not any("of another" in name for name in owners)


def test_while_it_waits_its_state_is_retry_and_says_why(desk: Desk, charge: LockedTask) -> None:
    result = charge.apply_async(("42",))

    refused(desk)

    assert result.state == "RETRY"
    assert type(result.result).__name__ == "LockContended"
    assert "order:42" in str(result.result)


@pytest.mark.parametrize("ignore_result", [False, True])
def test_its_state_is_stored_before_it_is_published_and_not_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, ignore_result: bool
) -> None:
    options = {"ignore_result": ignore_result, "store_errors_even_if_ignored": True}

    @desk.locked("order:{order}", name="charge", **options)
    def charge(order: str) -> None: ...

    stored, backend = list[str](), type(desk.app.backend)
    store = backend.mark_as_retry

    def noted(self: Any, task_id: str, *args: Any, **options: Any) -> Any:
        stored.append(f"RETRY, {desk.size()} published")
        return store(self, task_id, *args, **options)

    monkeypatch.setattr(backend, "mark_as_retry", noted)
    charge.apply_async(("42",))
    refused(desk)

    # A faster copy may have its result by then
    assert stored == ["RETRY, 0 published"]


def test_the_hook_and_the_event_of_a_retry_are_fired(desk: Desk) -> None:
    hooks = []

    class Hooked(LockedTask):
        abstract = True

        def on_retry(self, exc: Any, task_id: str, *rest: Any) -> None:
            hooks.append((type(exc).__name__, task_id))

    @desk.app.task(base=Hooked, name="hooked", lock_key="order:{order}")
    def hooked(order: str) -> None: ...

    events = desk.app.events.Receiver(desk.connection).queue(desk.channel)
    events.declare()
    result = hooked.apply_async(("42",))
    refused(desk)

    assert hooks == [("LockContended", result.id)]
    types = [message.payload["type"] for message in iter(events.get, None)]
    assert types == ["task-started", "task-retried"]


def test_it_comes_back_within_the_backoff(desk: Desk) -> None:
    @desk.locked("k", name="later", on_contention=Reschedule())
    def later() -> None: ...

    later.delay()
    before = datetime.now(UTC)
    _, again = refused(desk, "k")

    eta = datetime.fromisoformat(again.headers["eta"])
    assert before <= eta <= datetime.now(UTC) + timedelta(seconds=1)
