"""How much is locked and waits; and the store is asked once, however many want to know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_dlock.core.state import KeyState
from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops import gauges
from celery_dlock.ops.gauges import CachedGauges, Gauges
from celery_dlock.stores.base import LockBackend
from tests.services.until import until

SOME = Gauges(1, 2.0, 3, 4, 5.0, 6, 7, 8)
OTHERS = Gauges(8, 7.0, 6, 5, 4.0, 3, 2, 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Gauges]], list[int]]:
    """``asked(answer)``: a reading ends so from now on; the list grows with each one."""

    def asked(answer: Callable[[], Gauges]) -> list[int]:
        questions: list[int] = []

        def of(_: Any) -> Gauges:
            questions.append(1)
            return answer()

        monkeypatch.setattr(Gauges, "of", of)
        return questions

    return asked


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is put to the store."""
    monkeypatch.setattr(gauges, "GOOD_FOR", 0.0)
    monkeypatch.setattr(gauges, "REST", 0)


def away(*_: Any) -> Any:
    raise BackendUnavailable("away")


def test_the_store_is_asked_once_in_a_while(
    app: Celery, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GOOD_FOR", 3600.0)
    questions = asked(lambda: SOME)
    cached = CachedGauges(app)

    scrapers = [threading.Thread(target=cached.get) for _ in range(5)]
    for scraper in scrapers:
        scraper.start()
    for scraper in scrapers:
        scraper.join()

    assert cached.get().gauges == SOME
    assert len(questions) == 1

    monkeypatch.setattr(gauges, "GOOD_FOR", 0.0)
    monkeypatch.setattr(gauges, "REST", 0)
    fresh = CachedGauges(app)
    assert fresh.get().gauges == fresh.get().gauges == SOME
    assert len(questions) == 3


def test_a_store_that_is_away_is_down_and_what_was_read_before_is_told_with_its_age(
    app: Celery, store: LockBackend, asked: Any, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = asked(lambda: SOME)
    app.conf.beat_scheduler = "dlock"
    cached = CachedGauges(app)
    before = cached.get()
    assert (before.up, before.writable, before.gauges) == (True, True, SOME)
    assert before.beat_leads is False

    monkeypatch.setattr(store, "look", away)
    after = cached.get()

    assert (after.up, after.writable, after.gauges) == (False, False, SOME)
    assert after.beat_leads is None, "nobody knows"
    assert before.age is not None
    assert after.age is not None
    assert 0 <= before.age < after.age
    assert len(questions) == 1  # who does not answer is not asked for all keys
    never = CachedGauges(app).get()
    assert (never.up, never.gauges, never.age) == (False, None, None)


def test_a_store_that_refuses_writes_is_up_and_not_writable(
    app: Celery, store: LockBackend, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "enter", away)

    report = CachedGauges(app).get()

    assert (report.up, report.writable) == (True, False)
    assert report.gauges is not None


def test_a_failed_reading_is_no_failed_store(app: Celery, asked: Any, at_once: None) -> None:
    asked(lambda: SOME)
    cached = CachedGauges(app)
    cached.get()

    asked(away)

    report = cached.get()
    assert (report.up, report.gauges) == (True, SOME)


def test_a_reading_that_takes_long_holds_nobody_up_and_the_one_before_is_told(
    app: Celery, asked: Any, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def late() -> Gauges:
        ends.wait()
        return OTHERS

    asked(lambda: SOME)
    cached = CachedGauges(app, 0.01)
    until("it has been read once", lambda: cached.get().gauges == SOME)
    questions = asked(late)

    try:
        reports = [cached.get() for _ in range(3)]
        # Nor is it read again before that has ended
        assert [(report.up, report.gauges) for report in reports] == [(True, SOME)] * 3
        assert len(questions) == 1
    finally:
        ends.set()
    until("it has been read", lambda: cached.get().gauges == OTHERS)


def test_a_store_that_does_not_answer_holds_nobody_up(
    app: Celery, store: LockBackend, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "PROBE_TIMEOUT", 0.01)
    answers, questions = threading.Event(), list[int]()

    def late(keys: list[str]) -> list[KeyState]:
        questions.append(len(keys))
        answers.wait()
        return [KeyState()]

    monkeypatch.setattr(store, "look", late)
    cached = CachedGauges(app)

    try:
        assert [cached.get().up for _ in range(3)] == [False, False, False]
        assert len(questions) == 1
    finally:
        answers.set()
    until("it has answered", lambda: cached.get().up)
