"""Reasons that the lock store gives, which are so now: it runs, it waits, it is dead."""

from __future__ import annotations

from datetime import UTC, datetime

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Cause
from celery_dlock.inspection.facts import Facts
from celery_dlock.inspection.overview import instant
from celery_dlock.inspection.past import tries
from celery_dlock.inspection.standing import Place, Standing
from celery_dlock.inspection.verdict import State, Verdict
from celery_dlock.inspection.wording import Clock, count, listed, ordinal

_NOTHING = Standing(datetime.min.replace(tzinfo=UTC))


def _of(facts: Facts) -> Standing:
    return facts.standing or _NOTHING


def runs(facts: Facts, clock: Clock) -> Verdict | None:
    live = [(key, held) for key, held in _of(facts).holds if held.expires > clock.now]
    if not live:
        return None
    reasons = [
        f"runs, and has held {key!r} since {clock.tell(held.since)}"
        f"{f' with token {held.token}' if held.token else ''}; its lease ends at "
        f"{clock.tell(held.expires)} unless its worker renews it"
        for key, held in live
    ]
    return Verdict(State.RUNNING, tuple(reasons), tuple(key for key, _ in live))


def has_lapsed(facts: Facts, clock: Clock) -> Verdict | None:
    """It was running when the store heard of it last."""
    reasons = tuple(
        f"held {key!r}{f' with token {held.token}' if held.token else ''} until its lease ended at "
        f"{clock.tell(held.expires)}, and did not give it back: its worker is gone, or cut off"
        for key, held in _of(facts).holds
    )
    keys = tuple(key for key, _ in _of(facts).holds)
    return Verdict(State.UNKNOWN, reasons, keys) if reasons else None


def stands_in_line(facts: Facts, clock: Clock) -> Verdict | None:
    places = _of(facts).places
    called = [place for place in places if place.grant is not None]
    if called:
        return Verdict(State.CALLED, (_called(called[0], clock),), (called[0].key,))
    if not places:
        return None
    place = max(places, key=lambda place: place.parked)
    ahead = tuple(held.task_id for held in place.holders) + place.called
    if place.parked:
        return Verdict(State.WAITING, (_waits(place, facts, clock),), (place.key,), ahead)
    last = facts.latest("Rescheduled")
    tried = tries(facts, last, clock) if last else ()
    return Verdict(
        State.RESCHEDULED, (*tried, _comes_back(place, facts, clock)), (place.key,), ahead
    )


def _called(place: Place, clock: Clock) -> str:
    assert place.grant is not None
    if place.grant.ending is not None:
        return (
            f"was called from the queue of {place.key!r} to end, because it was "
            f"{place.grant.ending}; no worker has done so yet"
        )
    again = ", and it is called again until one does" if place.parked else ""
    return f"its turn for {place.key!r} has come; no worker has taken it yet{again}"


def _waits(place: Place, facts: Facts, clock: Clock) -> str:
    arrived = place.arrived
    waits = f"has waited since {clock.tell(arrived)} for" if arrived else "waits for"
    until = f"; it gives up at {clock.tell(place.until)}" if place.until else ""
    return f"{waits} {place.key!r} {_behind(place, facts, clock)}{until}"


def _comes_back(place: Place, facts: Facts, clock: Clock) -> str:
    until = f" until {clock.tell(place.until)}" if place.until else ""
    return f"has a place in the queue of {place.key!r}{until}, {_behind(place, facts, clock)}"


def _behind(place: Place, facts: Facts, clock: Clock) -> str:
    others = place.number - 1
    ahead = f", and {count(others, 'other')}" if others else ""
    place_is = f"; its place is {ordinal(place.number)} of {place.total}"
    if not place.holders:
        if place.called:
            who = f"behind {listed(place.called)}, called and not taken by any worker yet"
            return f"{who}{place_is}"
        calls = "; a worker that runs calls the next one" if place.parked else ""
        return f"though nobody holds it now{calls}{place_is}"
    held, *more = place.holders
    if more:
        who = listed([_named(one.task_id, facts) for one in place.holders])
        return f"behind {who}, which hold it{ahead}{place_is}"
    token = f" with token {held.token}" if held.token else ""
    ended = f" (its lease ended at {clock.tell(held.expires)})" if held.expires < clock.now else ""
    since = f"which has held it since {clock.tell(held.since)}{token}{ended}"
    return f"behind {_named(held.task_id, facts)}, {since}{ahead}{place_is}"


def _named(task_id: str, facts: Facts) -> str:
    name = facts.names.get(task_id)
    return f"{task_id} ({name})" if name else task_id


_CAUSES = {
    Cause.RUNS_LOST: f"{MAX_LOST_RUNS} of its runs lost their lock",
    Cause.UNREADABLE: "no worker could read its message",
    Cause.UNKNOWN_TASK: "no worker knows its task",
    Cause.UNPUBLISHABLE: "its message could not be published",
}


def is_dead(facts: Facts, clock: Clock) -> Verdict | None:
    if not _of(facts).dead:
        return None
    burial = _of(facts).dead[-1]
    since = clock.tell(instant(burial.dead.at))
    why = f"has been dead since {since}: {_CAUSES[burial.dead.cause]}, of {burial.key!r}"
    return Verdict(State.DEAD, (why, f"`dlock replay {facts.task_id}` puts it back"), (burial.key,))
