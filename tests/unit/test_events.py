"""Sinks hear everything, in order, and never raise into a task."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from celery_dlock.core import events
from celery_dlock.core.events import Acquired, Event, Released, Subject
from celery_dlock.core.sinks import Sinks

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


def test_a_sink_that_fails_to_carry_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
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
