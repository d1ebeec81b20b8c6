"""What a request without an answer may have left in the store is gone before the copy is sent."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Claim, EnterVerdict, LeaveVerdict, Outcome
from celery_dlock.delivery.publish import publish_again
from celery_dlock.errors import BackendUnavailable
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import Reply
from tests.services.desk import open_desk


def test_nothing_is_taken_back_after_the_message_was_published_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a store whose answers to entering are lost
    happened: list[str] = []
    with open_desk() as desk:

        @desk.locked("order:{order}", name="charge")
        def charge(order: str) -> None: ...

        backend = runtime(desk.app).backend
        enter, leave, send = backend.enter, backend.leave, publish_again

        def entered(claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
            enter(claim, message)
            happened.append("enter")
            raise BackendUnavailable("the answer was lost")

        def left(
            claim: Claim, outcome: Outcome, message: bytes | None = None
        ) -> Reply[LeaveVerdict]:
            happened.append("leave")
            return leave(claim, outcome, message)

        def published(*arguments: object) -> None:
            happened.append("publish")
            send(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(backend, "enter", entered)
        monkeypatch.setattr(backend, "leave", left)
        monkeypatch.setattr("celery_dlock.delivery.carry_out.publish_again", published)
        # When a task is put back because of that
        charge.apply_async(("42",))
        desk.deliver()
        # Then the copy, which may run elsewhere at once, meets nothing of this attempt any more
        assert happened == ["enter", "leave", "publish"]
        assert backend.peek("order:42").holders == ()
