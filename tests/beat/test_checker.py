"""The checker itself: a clean record passes, and each broken promise is seen, by its own check."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest

from tests.beat.checker import Check, violations
from tests.beat.due import due_instants
from tests.beat.entries import BASE, ENTRIES
from tests.beat.evidence import Evidence, Published, PutBack, Ran, Stood, Term
from tests.services.beat_entries import Entry

END = BASE + timedelta(minutes=10)

LOCKED, PLAIN = ENTRIES[0], ENTRIES[1]
(SUN, *_) = (entry for entry in ENTRIES if entry.solar and entry.task == "locked")


def tick(entry: Entry, due: datetime, beat: str = "a", **changes: Any) -> Published:
    """Sent by *beat* a virtual second after it was due; a real second is a minute."""
    at = (due - BASE) / timedelta(minutes=1)
    sent = Published(beat, ord(beat), entry.name, due, f"{entry.name}{due}", at, due)
    return replace(sent, now=due + timedelta(seconds=1), **changes)


def ran(sent: Published) -> Ran:
    return Ran(sent.entry, sent.due, sent.id)


TICKS = [tick(entry, due) for entry in ENTRIES for due in due_instants(entry, BASE, END)]
TICKS.sort(key=lambda each: each.at)
CLEAN = Evidence(
    ENTRIES, BASE, END, [ran(each) for each in TICKS], TICKS, terms=[Term("a", ord("a"), 0.0)]
)


def of(entry: Entry) -> Published:
    """A tick of *entry* in the middle."""
    found = [each for each in TICKS if each.entry == entry.name]
    return found[len(found) // 2]


def checks(**changes: Any) -> list[StrEnum]:
    return [found.check for found in violations(replace(CLEAN, **changes))]


def test_a_clean_record_passes() -> None:
    assert checks() == []
    assert len(TICKS) > 40
    assert {entry.name for entry in ENTRIES if not entry.solar} < {each.entry for each in TICKS}


@pytest.mark.parametrize("entry", [LOCKED, PLAIN, SUN])
def test_a_tick_that_did_not_run_is_missing(entry: Entry) -> None:
    assert checks(ran=[each for each in CLEAN.ran if each != ran(of(entry))]) == [Check.MISSING]


@pytest.mark.parametrize("entry", [LOCKED, PLAIN])
def test_a_tick_that_was_said_to_be_missed_is_not_missing(entry: Entry) -> None:
    dues = [each.due for each in TICKS if each.entry == entry.name]
    first, missed = dues[0], (entry.name, dues[0], dues[1])
    rest = [each for each in CLEAN.ran if (each.entry, each.due) != (entry.name, first)]

    assert checks(ran=rest, missed=[missed]) == []
    assert checks(ran=rest, missed=[("another", *missed[1:])]) == [Check.MISSING]
    without_both = [each for each in rest if (each.entry, each.due) != (entry.name, dues[1])]
    assert checks(ran=without_both, missed=[missed]) == [Check.MISSING]


def test_an_entry_that_never_ran_is_missing() -> None:
    found = checks(ran=[each for each in CLEAN.ran if each.entry != PLAIN.name])
    assert found == [Check.MISSING] * 10


def test_a_locked_task_that_ran_twice_is_seen_whatever_was_told() -> None:
    again = of(LOCKED)
    told = [(again.entry, again.due)]
    assert checks(ran=[*CLEAN.ran, ran(again)], repeated=told) == [Check.TWICE]


def test_a_plain_task_may_run_twice_when_it_was_told() -> None:
    again = of(PLAIN)
    twice = [*CLEAN.ran, ran(again)]
    assert checks(ran=twice) == [Check.UNTOLD]
    assert checks(ran=twice, repeated=[(again.entry, again.due)]) == []


def test_one_sunset_is_one_however_ephem_comes_to_it() -> None:
    sent = of(SUN)
    later = replace(sent, due=sent.due + timedelta(milliseconds=3), id="another")
    instead = [ran(later) if each == ran(sent) else each for each in CLEAN.ran]
    assert checks(ran=instead) == []
    assert checks(ran=[*CLEAN.ran, ran(later)]) == [Check.TWICE]
    others = [each for each in CLEAN.ran if each != ran(sent)]
    day = timedelta(days=1)
    assert checks(ran=others, missed=[(SUN.name, later.due, later.due + day)]) == []
    assert checks(ran=others, missed=[(SUN.name, later.due - day, later.due)]) == [Check.MISSING]


def test_what_was_not_due_is_seen() -> None:
    off = Ran(LOCKED.name, of(LOCKED).due + timedelta(seconds=1), "off")
    assert checks(ran=[*CLEAN.ran, off]) == [Check.OFF]


def test_what_is_sent_before_it_is_due_is_seen() -> None:
    hasty = tick(LOCKED, of(LOCKED).due)
    hasty = replace(hasty, now=hasty.due - timedelta(seconds=1))
    assert checks(published=[hasty]) == [Check.EARLY]
    assert checks(published=[hasty], put_back=[PutBack(hasty.at - 0.1, hasty.due)]) == []


def test_a_tick_has_one_id_and_no_other_has_it() -> None:
    other = replace(ran(of(PLAIN)), id="another")
    told = [(other.entry, other.due)]
    assert checks(ran=[*CLEAN.ran, other], repeated=told) == [Check.IDENTITY]
    one_id = [replace(each, id="the same") for each in CLEAN.published]
    assert Check.IDENTITY in checks(published=one_id)


TAKEN_OVER = [Term("a", ord("a"), 0.0), Term("b", ord("b"), 5.0)]


def test_who_does_not_lead_sends_nothing() -> None:
    assert checks(terms=[]) == [Check.SENDERS] * len(TICKS)
    ended = checks(terms=[Term("a", ord("a"), 0.0, 5.0)])
    assert ended == [Check.SENDERS] * sum(each.at > 5.0 for each in TICKS)


def test_two_senders_are_seen() -> None:
    late = [each for each in TICKS if each.at > 5.0]
    assert checks(terms=TAKEN_OVER) == [Check.SENDERS] * len(late)
    by_b = [tick(LOCKED, each.due, "b") if each in late else each for each in TICKS]
    by_b = [replace(new, entry=old.entry, id=old.id) for new, old in zip(by_b, TICKS, strict=True)]
    assert checks(published=by_b, terms=TAKEN_OVER) == []


def test_who_was_paused_may_have_one_in_its_hand() -> None:
    before = [each for each in TICKS if each.at < 5.0]
    late = tick(LOCKED, of(LOCKED).due, at=7.0)
    later = replace(late, at=7.1)
    paused = [Stood("a", 4.9, 6.9)]
    assert checks(published=[*before, late], terms=TAKEN_OVER) == [Check.SENDERS]
    assert checks(published=[*before, late], terms=TAKEN_OVER, stood=paused) == []
    two = checks(published=[*before, late, later], terms=TAKEN_OVER, stood=paused)
    assert two == [Check.SENDERS]
    other = [Stood("b", 4.9, 6.9)]
    assert checks(published=[*before, late], terms=TAKEN_OVER, stood=other) == [Check.SENDERS]
