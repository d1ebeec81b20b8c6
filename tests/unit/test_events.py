"""Sinks hear everything, in order, and never raise into a task."""

from __future__ import annotations

import dataclasses
import json
import logging
from datetime import UTC, datetime

import pytest

from celery_dlock.core import events
from celery_dlock.core.events import EVENTS, Acquired, Event, Released, State, Subject, plain
from celery_dlock.core.sinks import Sinks
from celery_dlock.core.state import Outcome
from celery_dlock.monitoring.history import rows
from celery_dlock.monitoring.history_reader import HistoryEntry
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


@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
def test_an_event_says_all_that_is_to_be_known_of_its_kind(kind: type[Event]) -> None:
    assert lacking(kind) == set()


def lacking(kind: type[Event]) -> set[str]:
    """What *kind* leaves out of its row."""
    said = vars(kind).keys() | ({"says"} if "sentence" in vars(kind) else set())
    return {"level", "says", "counts", "after"} - said


def test_one_that_leaves_something_out_is_found() -> None:
    class Silent(Event):
        level = logging.INFO

    assert lacking(Silent) == {"says", "counts", "after"}


@pytest.mark.parametrize("event", one_of_each(SUBJECT), ids=list(EVENTS))
def test_the_history_has_the_event_again(event: Event) -> None:
    for row in rows(0, 0, 0, plain(event)):
        entry = HistoryEntry(
            *(datetime.now(UTC), row["event"], row["key"], row["task_id"], row["task_name"]),
            *(row["label"], row["token"], json.loads(row["details"])),
        )
        assert entry.told() == event


def test_each_outcome_of_a_release_is_told() -> None:
    told = [Released(SUBJECT, ("order:42",), outcome, 1.5) for outcome in Outcome]
    assert not [event for event in told if event.sentence().endswith(f": {event.outcome}")]
    assert Released(SUBJECT, ("order:42",), Outcome.FAILED, 1.5).state() is State.FAILED
    assert Released(SUBJECT, ("order:42",), "of another version", 1.5).state() is State.UNKNOWN


def test_events_are_frozen_values_and_the_list_has_them_all() -> None:
    made = {value for value in vars(events).values() if isinstance(value, type)}
    assert {value for value in made if issubclass(value, Event)} - {Event} == set(EVENTS.values())
    for value, name in ((SUBJECT, "label"), *((one, "subject") for one in one_of_each(SUBJECT))):
        assert not hasattr(value, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)
