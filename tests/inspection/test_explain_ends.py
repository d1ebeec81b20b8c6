"""A task that ends while it is asked after, and one whose worker has ended without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.events import Lost, Subject
from celery_dlock.core.state import Cause, Claim, Dead, Mode
from celery_dlock.monitoring.history import HistorySink
from celery_dlock.ops import facts
from celery_dlock.ops.explain import State, explain
from celery_dlock.ops.explain_key import explain_key
from celery_dlock.ops.facts import StoreFacts, store_facts
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.base import DeadMessage
from tests.services.desk import Desk, open_desk

KEY = "order:42"


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as made:
        yield made
        forget(made.app)


def test_one_that_ends_while_it_is_asked_after_is_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> str:
        return order

    result = charge.delay("42")

    def ends(*given: Any, **options: Any) -> StoreFacts:
        desk.deliver()
        return store_facts(*given, **options)

    monkeypatch.setattr(facts, "store_facts", ends)

    assert explain(desk.app, result.id).state is State.DONE


@pytest.mark.parametrize(
    ("cause", "state"), [(Cause.UNREADABLE, State.DONE), (Cause.RUNS_LOST, State.DEAD)]
)
def test_one_that_has_run_by_a_copy_of_its_dead_message_is_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, cause: Cause, state: State
) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> str:
        return order

    result = charge.delay("42")
    desk.deliver()
    letter = DeadMessage(KEY, Dead(f"{result.id}:0:0", Mode.EXCLUSIVE, 1, cause, 1_000_000), b"m")
    monkeypatch.setattr(runtime(desk.app).backend, "dead_of", lambda _: [letter])

    assert explain(desk.app, result.id).state is state


def test_of_one_whose_lock_was_taken_away_it_is_said_once_and_that_it_may_run_on(
    tmp_path: Path,
) -> None:
    with open_desk(dlock_history=f"sqlite:///{tmp_path / 'history.db'}") as desk:
        sink = HistorySink.from_app(desk.app)
        sink(Lost(Subject("freed", "charge", "order:{order}"), KEY, "the store has given it up"))
        sink.flush(60)

        answer = explain(desk.app, "freed")
        forget(desk.app)

    assert answer.state is State.UNKNOWN
    lost, hint = answer.sentences
    assert lost.endswith(f"lost {KEY!r}: the store has given it up")
    assert "its body may still run without the lock" in hint


def test_who_let_the_lease_lapse_is_not_said_to_hold_it(desk: Desk) -> None:
    runtime(desk.app).backend.enter(Claim(KEY, "gone:0:0", "n", ttl=1))

    of_key = explain_key(desk.app, KEY).sentences[0]
    answer = explain(desk.app, "gone")

    assert of_key.startswith("gone held it from ")
    assert "until its lease expired at" in of_key
    assert answer.state is State.UNKNOWN
    assert "did not release it: its worker is gone or cut off" in answer.sentences[0]
