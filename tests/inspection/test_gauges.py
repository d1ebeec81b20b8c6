"""How much is locked and waits; and the store is asked once, however many want to know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops import gauges
from celery_dlock.ops.gauges import CachedGauges, Gauges
from tests.services.until import until

SOME = Gauges(1, 2, 3, 4.0, 5, 6, 7)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Gauges]], list[int]]:
    """``asked(answer)``: from now on the store answers so; the list grows with each question."""

    def asked(answer: Callable[[], Gauges]) -> list[int]:
        questions: list[int] = []

        def of(_: Any) -> Gauges:
            questions.append(1)
            return answer()

        monkeypatch.setattr(Gauges, "of", of)
        return questions

    return asked


def away() -> Gauges:
    raise BackendUnavailable("away")


def test_the_store_is_asked_once_in_a_while(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "GOOD_FOR", 3600.0)
    questions = asked(lambda: SOME)
    cached = CachedGauges(None)

    scrapers = [threading.Thread(target=cached.get) for _ in range(5)]
    for scraper in scrapers:
        scraper.start()
    for scraper in scrapers:
        scraper.join()

    assert cached.get() == SOME
    assert len(questions) == 1

    monkeypatch.setattr(gauges, "GOOD_FOR", 0.0)
    fresh = CachedGauges(None)
    assert fresh.get() == fresh.get() == SOME
    assert len(questions) == 3


def test_a_store_that_is_away_is_not_asked_more_often(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GOOD_FOR", 3600.0)
    questions = asked(away)
    cached = CachedGauges(None)

    assert cached.get() is cached.get() is None
    assert len(questions) == 1


def test_nothing_old_is_told_when_the_store_goes_away(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GOOD_FOR", 0.0)
    cached = CachedGauges(None)
    asked(lambda: SOME)
    assert cached.get() == SOME

    asked(away)

    assert cached.get() is None


def test_a_store_that_does_not_answer_holds_nobody_up(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "READ_TIMEOUT", 0.01)
    monkeypatch.setattr(gauges, "GOOD_FOR", 3600.0)
    answers = threading.Event()

    def late() -> Gauges:
        answers.wait()
        return SOME

    questions = asked(late)
    cached = CachedGauges(None)

    try:
        # Nor is it asked again before it has answered
        assert [cached.get() for _ in range(3)] == [None, None, None]
        assert len(questions) == 1
    finally:
        answers.set()
    assert until("it has answered", cached.get) == SOME
    assert len(questions) == 1
