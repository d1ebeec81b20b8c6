"""Sinks hear everything, in order, and never raise into a task."""

from __future__ import annotations

import dataclasses
import logging
from typing import get_args

import pytest

from celery_dlock.core import events
from celery_dlock.core.events import (
    Acquired,
    Event,
    Lost,
    Released,
    Sinks,
    StaleRejected,
    Subject,
    TimedOut,
    Unavailable,
)

SUBJECT = Subject("id", "charge", "order:{order_id}")
ACQUIRED = Acquired(SUBJECT, ("order:42",), (7,), 0.002)
RELEASED = Released(SUBJECT, ("order:42",), "done", 1.5)


def test_every_sink_hears_every_event_in_order() -> None:
    one: list[Event] = []
    two: list[Event] = []
    sinks = Sinks([one.append, two.append])
    sinks.emit(ACQUIRED)
    sinks.emit(RELEASED)
    assert one == two == [ACQUIRED, RELEASED]


def test_a_sink_that_fails_is_logged_and_the_others_still_hear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError("no metrics today")

    Sinks([broken, heard.append]).emit(ACQUIRED)
    assert heard == [ACQUIRED]
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "broken" in record.getMessage()
    assert "no metrics today" in str(record.exc_info)


def test_what_ends_the_process_passes_through() -> None:
    def stop(event: Event) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        Sinks([stop]).emit(ACQUIRED)


@pytest.mark.parametrize(
    "wrong",
    [
        TimedOut(SUBJECT, "order:42", 5.0),
        Lost(SUBJECT, "order:42", "it was not renewed in time"),
        StaleRejected(SUBJECT, "order:42", 7),
        Unavailable(SUBJECT, "no answer"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_went_wrong_is_a_warning_without_any_sink(
    caplog: pytest.LogCaptureFixture, wrong: Event
) -> None:
    with caplog.at_level(logging.DEBUG, "celery_dlock"):
        Sinks().emit(wrong)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "charge" in record.getMessage()


def test_the_course_of_things_is_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "celery_dlock"):
        Sinks().emit(ACQUIRED)
        Sinks().emit(RELEASED)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_events_are_frozen_values_and_the_union_names_them_all() -> None:
    made = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value is not Subject
    }
    assert made == set(get_args(Event))
    for value in (SUBJECT, ACQUIRED, RELEASED):
        assert not hasattr(value, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)
