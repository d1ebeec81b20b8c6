"""A skipped task in a chain, a group or a chord: whoever waits for it gets an answer."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group

from celery_dlock import LockedTask, Skip, lock
from tests.services.desk import Desk


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def note(desk: Desk, ran: list[Any]) -> Any:
    @desk.app.task(name="note")
    def note(value: Any, what: str = "note") -> str:
        ran.append((what, value))
        return what

    return note


@pytest.fixture
def stop(desk: Desk, ran: list[Any]) -> LockedTask:
    @desk.locked("k", name="stop", on_contention=Skip())
    def stop(*args: Any) -> str:
        ran.append(("stop", *args))
        return "ran"

    return stop


@pytest.fixture
def go_on(desk: Desk) -> LockedTask:
    @desk.locked("k", name="go_on", on_contention=Skip(then="continue"))
    def go_on(*args: Any) -> str:
        return "ran"

    return go_on


def deliver_while_held(desk: Desk) -> None:
    with lock("k", app=desk.app, timeout=0):
        desk.deliver_all()


def test_a_chain_stops_and_its_later_tasks_complete_with_the_result_of_the_skip(
    desk: Desk, note: Any, stop: LockedTask, ran: list[Any]
) -> None:
    last = chain(note.si(1), stop.si(), note.s("after"), note.s("last"))()

    deliver_while_held(desk)

    assert ran == [("note", 1)]
    results = [last, last.parent, last.parent.parent]
    assert [result.state for result in results] == ["SUCCESS"] * 3
    for result in results:
        assert result.get()["skipped"] is True
        assert result.get()["key"] == "k"


def test_a_chain_continues_with_the_result_of_the_skip(
    desk: Desk, note: Any, go_on: LockedTask, ran: list[Any]
) -> None:
    last = chain(go_on.si(), note.s("after"))()

    deliver_while_held(desk)

    ((what, value),) = ran
    assert what == "after"
    assert value["skipped"] is True
    assert last.get() == "after"


def test_a_link_behind_a_skip_that_stops_is_not_called(
    desk: Desk, note: Any, stop: LockedTask, ran: list[Any]
) -> None:
    stop.apply_async(link=note.s("linked"))

    deliver_while_held(desk)

    assert ran == []


def test_a_link_behind_a_skip_that_continues_is_called(
    desk: Desk, note: Any, go_on: LockedTask, ran: list[Any]
) -> None:
    go_on.apply_async(link=note.s("linked"))

    deliver_while_held(desk)

    assert [what for what, _ in ran] == ["linked"]


@pytest.mark.parametrize("name", ["stop", "go_on"])
def test_a_chord_counts_a_skipped_member(
    desk: Desk, note: Any, stop: LockedTask, go_on: LockedTask, ran: list[Any], name: str
) -> None:
    skipped = {"stop": stop, "go_on": go_on}[name]
    result = chord([note.si(1, "first"), skipped.si(), note.si(3, "third")], note.s("body"))()

    deliver_while_held(desk)

    assert result.get() == "body"
    ((_, values),) = [entry for entry in ran if entry[0] == "body"]
    assert (values[0], values[2]) == ("first", "third")
    assert values[1]["skipped"] is True


def test_a_chain_in_a_chord_header_that_stops_still_completes_the_chord(
    desk: Desk, note: Any, stop: LockedTask, ran: list[Any]
) -> None:
    header = [note.si(1, "first"), chain(note.si(2), stop.si(), note.s("never"), note.s("nor"))]
    result = chord(header, note.s("body"))()

    deliver_while_held(desk)

    assert result.get() == "body"
    ((_, values),) = [entry for entry in ran if entry[0] == "body"]
    assert values[0] == "first"
    assert values[1]["skipped"] is True
    assert not {"never", "nor"} & {what for what, _ in ran}


def test_a_chord_behind_a_skip_in_a_chain_completes_without_running(
    desk: Desk, note: Any, stop: LockedTask, ran: list[Any]
) -> None:
    result = chain(stop.si(), chord([note.s("a"), note.s("b")], note.s("body")))()

    deliver_while_held(desk)

    assert ran == []
    assert result.state == "SUCCESS"
    assert result.get()["skipped"] is True
    assert [member["skipped"] for member in result.parent.get()] == [True, True]


def test_a_group_behind_a_skip_in_a_chain_completes_without_running(
    desk: Desk, note: Any, stop: LockedTask, ran: list[Any]
) -> None:
    result = chain(stop.si(), group(note.s("a"), note.s("b")))()

    deliver_while_held(desk)

    assert ran == []
    assert result.ready()
    assert [entry["skipped"] for entry in result.get()] == [True, True]


def test_a_group_of_skips_is_ready(desk: Desk, stop: LockedTask) -> None:
    result = group(stop.si(), stop.si())()

    deliver_while_held(desk)

    assert [entry["skipped"] for entry in result.get()] == [True, True]


def test_a_locked_body_of_a_chord_may_be_skipped(desk: Desk, note: Any, stop: LockedTask) -> None:
    result = chord([note.si(1), note.si(2)], stop.s())()

    deliver_while_held(desk)

    assert result.get()["skipped"] is True


def test_a_group_of_chains_behind_a_skip_completes_without_running(
    desk: Desk, note: Any, stop: LockedTask, ran: list[Any]
) -> None:
    result = chain(stop.si(), group(chain(note.s("a"), note.s("b")), note.s("c")))()

    deliver_while_held(desk)

    assert ran == []
    assert [entry["skipped"] for entry in result.get()] == [True, True]
