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
    Subject,
)
from tests.monitoring.happenings import one_of_each

SUBJECT = Subject("id", "charge", "order:{order_id}")
ACQUIRED = Acquired(SUBJECT, ("order:42",), (7,), 0.002, 30.0)
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


#: The others are the course of things.
WRONG = {
    *("TimedOut", "Lost", "StaleRejected", "Unavailable"),
    *("DeadLettered", "TooLarge", "TickRepeated", "TicksMissed"),
}


@pytest.mark.parametrize("event", one_of_each(SUBJECT), ids=lambda event: type(event).__name__)
def test_what_went_wrong_is_a_warning_without_any_sink_and_all_else_is_for_debugging(
    caplog: pytest.LogCaptureFixture, event: Event
) -> None:
    with caplog.at_level(logging.DEBUG, "celery_dlock"):
        Sinks().emit(event)
    (record,) = caplog.records
    assert (record.levelno == logging.WARNING) == (type(event).__name__ in WRONG)
    assert record.levelno in (logging.WARNING, logging.DEBUG)
    assert "charge" in record.getMessage()


def test_what_was_given_up_for_a_newer_task_is_the_course_of_things(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "celery_dlock"):
        Sinks().emit(Lost(SUBJECT, "order:42", "replaced by newer", "newer"))
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


def test_a_log_record_has_the_event_for_people_and_for_programs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "celery_dlock"):
        Sinks().emit(ACQUIRED)
    (record,) = caplog.records
    assert record.getMessage() == (
        "charge[id] Acquired: label='order:{order_id}', keys=('order:42',), tokens=(7,), "
        "took=0.002, ttl=30.0, waited=0.0, since_woken=None"
    )
    assert vars(record)["dlock"] == {
        "event": "Acquired",
        "task_id": "id",
        "task_name": "charge",
        "label": "order:{order_id}",
        "keys": ("order:42",),
        "tokens": (7,),
        "took": 0.002,
        "ttl": 30.0,
        "waited": 0.0,
        "since_woken": None,
    }


def test_nothing_is_made_of_an_event_that_nobody_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "plain", lambda event: pytest.fail("it is not wanted"))
    with caplog.at_level(logging.WARNING, "celery_dlock"):
        Sinks().emit(ACQUIRED)
    assert caplog.records == []


class Carrier:
    """A sink that has something to say to its later self."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def __call__(self, event: Event) -> None: ...

    def carry(self, subject: Subject) -> dict[str, str]:
        return self.texts


def test_a_message_carries_what_sinks_say_and_what_it_came_with() -> None:
    came = Subject("id", "charge", "order:{order_id}", {"trace": "old", "else": "kept"})
    assert Sinks([Carrier(trace="new"), Carrier(more="too")]).carry(came) == {
        "trace": "new",
        "else": "kept",
        "more": "too",
    }
    assert Sinks().carry(came) == dict(came.carried)


def test_a_sink_that_cannot_say_what_to_carry_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Carrier):
        def carry(self, subject: Subject) -> dict[str, str]:
            raise ZeroDivisionError("nothing today")

    assert Sinks([Broken(), Carrier(trace="it is")]).carry(SUBJECT) == {"trace": "it is"}
    assert "nothing today" in caplog.text


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
