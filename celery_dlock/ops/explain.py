"""Why did my task not run?

The lock store is believed first: what it says is so now, that a task runs, waits or is dead. A
final result comes next, then the last event, then whatever else Celery has written down. The answer
is one word, the reasons for it with the names in them, and which of these did not answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import states

from celery_dlock.core.events import EVENTS
from celery_dlock.core.events import State as State
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.sentences import count, listed, seconds, short
from celery_dlock.core.state import Cause
from celery_dlock.core.upkeep import HAVE_FAILED
from celery_dlock.errors import LockContended
from celery_dlock.monitoring.history_reader import HistoryEntry
from celery_dlock.ops.event_text import Clock, describe, ordinal
from celery_dlock.ops.facts import Facts, QueuePosition, Result, StoreFacts, facts
from celery_dlock.ops.holds import sentence
from celery_dlock.ops.overview import (
    Held,
    instant,
    is_debounced,
    opens,
)

_NOTHING = StoreFacts(datetime.min.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state, the reasons for it, and the keys and the other tasks that they name."""

    state: State
    reasons: tuple[str, ...]
    keys: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


def has_ended(facts: Facts, clock: Clock) -> Verdict | None:
    """By its result, if that is final."""
    result = facts.result
    if result is None:
        return None
    at = f" at {clock.tell(result.at)}" if result.at else ""
    if result.skip is not None:
        return _skip(result.skip, at, clock)
    if result.state == states.SUCCESS:
        return Verdict(State.DONE, (f"was done{at}: its result is stored",))
    if result.state == states.REVOKED:
        event = facts.latest("Revoked")
        if event is None:
            return Verdict(State.REVOKED, (f"was revoked{at}",))
        return _of(State.REVOKED, event, clock)
    if result.state == states.FAILURE:
        return _failure(result, at)
    return None


def has_happened(facts: Facts, clock: Clock) -> Verdict | None:
    """By the last event that decides anything."""
    last = facts.latest(*_DECISIVE)
    if last is None:
        return None
    if last.event == "Dropped":
        return _dropped(facts, last, clock)
    if last.event == "Rescheduled":
        return _rescheduled(facts, last, clock)
    event = last.told()
    state = event.state() if event else None
    hint = event.hint if event and state is event.after and facts.store is not None else None
    if state is None or (state in _STORED and facts.store is not None):
        state = State.UNKNOWN
    return _of(state, last, clock, hint)


def is_on_its_way(facts: Facts, clock: Clock) -> Verdict | None:
    """By a state that is not final, which may be an old one."""
    result = facts.result
    if result is None:
        return None
    if result.state == states.RETRY:
        error = result.value
        keys = (error.key,) if isinstance(error, LockContended) else ()
        tasks = (error.holder,) if isinstance(error, LockContended) and error.holder else ()
        why = f"was rescheduled: {_error_text(error)}"
        return Verdict(State.RESCHEDULED, (why,), keys, tasks)
    if result.state == states.STARTED:
        why = "was started by a worker and holds no lock: it may ask for it, or its worker is gone"
        return Verdict(State.RUNNING, (why,))
    why = f"the result backend says {short(result.state)}, and the lock store knows nothing of it"
    return Verdict(State.UNKNOWN, (why,))


def besides(facts: Facts, state: State, clock: Clock) -> list[str]:
    """What else has happened to it, that a person should know."""
    sentences: list[str] = []
    for name, kind in EVENTS.items():
        entries = facts.all(name) if state in kind.besides else []
        if entries:
            often = f" ({count(len(entries), 'time')} in all)" if len(entries) > 1 else ""
            sentences.append(f"{describe(entries[-1], clock)}{often}")
    return sentences


def _skip(skip: Any, at: str, clock: Clock) -> Verdict:
    key, holder, since, reason = (skip.get(name) for name in ("key", "holder", "since", "reason"))
    tasks = (holder,) if isinstance(holder, str) else ()
    if reason is not None:
        why = short(reason)
    elif holder is None:
        why = f"{key!r} was reserved for a waiting task"
    else:
        then = clock.tell_seconds(since)
        why = f"{key!r} was held by {short(holder)}{f' since {then}' if then else ''}"
    return Verdict(State.SKIPPED, (f"was skipped{at}: {why}",), (str(key),), tasks)


def _error_text(error: Any) -> str:
    """The text of *error*, without its advice to look here."""
    return short(error.why if isinstance(error, LockContended) else error)


def _failure(result: Result, at: str) -> Verdict:
    error, key = result.value, getattr(result.value, "key", None)
    why = f"failed{at}: {type(error).__name__}: {_error_text(error)}"
    keys = (key,) if isinstance(key, str) else ()
    tasks = (error.holder,) if isinstance(error, LockContended) and error.holder else ()
    return Verdict(State.FAILED, (why,), keys, tasks)


def _dropped(facts: Facts, last: HistoryEntry, clock: Clock) -> Verdict:
    """A duplicate was; the task itself may have been through before."""
    ran = next((e for e in facts.all("Released") if e.details.get("outcome") == "done"), None)
    reason = str(last.details.get("reason"))
    at = clock.tell(last.at)
    why = f"had a duplicate dropped at {at}: {facts.task_id} is already {reason}"
    if ran is not None and reason == "done":
        return Verdict(State.DONE, (describe(ran, clock), why), _keys(ran))
    return Verdict(State.DROPPED, (why,), _keys(last))


def _rescheduled(facts: Facts, last: HistoryEntry, clock: Clock) -> Verdict:
    refused = facts.latest("Contended")
    holder = refused.details.get("holder") if refused else None
    return Verdict(
        State.RESCHEDULED,
        _tries(facts, last, clock),
        _keys(refused) if refused else (),
        (holder,) if isinstance(holder, str) else (),
    )


def _tries(facts: Facts, last: HistoryEntry, clock: Clock) -> tuple[str, ...]:
    """How often it was rescheduled and why, and when it comes next; *last* is the last time."""
    times = count(len(facts.all("Rescheduled")), "time")
    due = last.at + timedelta(seconds=float(last.details.get("countdown") or 0.0))
    left = clock.until(due)
    following = (
        f"its next try is in at most {seconds(left)}"
        if left > 0
        else f"its next try was due at {clock.tell(due)}: does a worker consume its queue?"
    )
    reason = short(last.details.get("reason"))
    why = f"was rescheduled {times}, last at {clock.tell(last.at)}: {reason}"
    return why, following


def _of(state: State, entry: HistoryEntry, clock: Clock, hint: str | None = None) -> Verdict:
    holder = entry.details.get("holder") or entry.details.get("living")
    reasons = (describe(entry, clock), hint) if hint else (describe(entry, clock),)
    return Verdict(state, reasons, _keys(entry), (holder,) if isinstance(holder, str) else ())


def _keys(entry: HistoryEntry) -> tuple[str, ...]:
    return (entry.key,) if entry.key is not None else ()


#: The events that decide what has become of a task, unless somebody else knows better.
_DECISIVE = tuple(name for name, kind in EVENTS.items() if kind.after is not None)

#: What the store would know.
_STORED = (State.RUNNING, State.WAITING)


def _in_store(facts: Facts) -> StoreFacts:
    return facts.store or _NOTHING


def runs(facts: Facts, clock: Clock) -> Verdict | None:
    live = [(key, held) for key, held in _in_store(facts).holds if held.expires > clock.now]
    if not live:
        return None
    reasons = [
        f"runs, and has held {key!r} since {clock.tell(held.since)}"
        f"{f' with token {held.token}' if held.token else ''}; {_lasts(held, clock)}"
        for key, held in live
    ]
    return Verdict(State.RUNNING, tuple(reasons), tuple(key for key, _ in live))


def _lasts(held: Held, clock: Clock) -> str:
    ends = f"its lease expires at {clock.tell(held.expires)}"
    if held.replaced_by:
        return f"{ends} and is not renewed, because {held.replaced_by} replaces it"
    return f"{ends} unless its worker renews it"


def has_expired(facts: Facts, clock: Clock) -> Verdict | None:
    """It was running when the store heard of it last."""
    reasons = tuple(
        f"held {key!r}{f' with token {held.token}' if held.token else ''} until its lease expired "
        f"at {clock.tell(held.expires)}, and did not release it: its worker is gone or cut off"
        for key, held in _in_store(facts).holds
    )
    keys = tuple(key for key, _ in _in_store(facts).holds)
    return Verdict(State.UNKNOWN, reasons, keys) if reasons else None


def waits_in_queue(facts: Facts, clock: Clock) -> Verdict | None:
    places = _in_store(facts).places
    waits_elsewhere = any(place.entry.parked for place in places)
    kept = [place for place in places if waits_elsewhere and place.entry.reserved]
    places = tuple(place for place in places if place not in kept)
    woken = [place for place in places if place.entry.woken]
    if woken:
        reasons = (_woken(woken[0], clock), *_put_off(facts), *_elsewhere(woken[0], facts))
        return Verdict(State.WOKEN, reasons, (woken[0].key,))
    if not places:
        return None
    place = max(places, key=lambda place: place.entry.parked)
    ahead = tuple(held.task_id for held in place.holders) + place.woken
    if place.entry.parked:
        reasons = (_waits(place, facts, clock), *_elsewhere(place, facts), *_reserved(kept, clock))
        return Verdict(State.WAITING, reasons, (place.key,), ahead)
    last = facts.latest("Rescheduled")
    tried = _tries(facts, last, clock) if last else ()
    return Verdict(
        State.RESCHEDULED, (*tried, _comes_back(place, facts, clock)), (place.key,), ahead
    )


def _reserved(kept: Sequence[QueuePosition], clock: Clock) -> Iterator[str]:
    for place in kept:
        assert place.entry.until is not None
        yield f"{place.key!r} is reserved for it until {clock.tell(place.entry.until)}"


def _elsewhere(place: QueuePosition, facts: Facts) -> tuple[str, ...]:
    broker = facts.brokers.get(place.key)
    if not broker:
        return ()
    return (
        f"belongs to the broker {broker}, which is not this application's: only a process at that "
        "broker, or one with its name as dlock_broker, publishes it",
    )


def _woken(place: QueuePosition, clock: Clock) -> str:
    if place.entry.ending is not None:
        return (
            f"was woken from the queue of {place.key!r} to end: {place.entry.ending}; "
            "no worker has taken it yet"
        )
    wakes = place.entry.wakes
    times = f", although it was woken {wakes} times" if wakes > 1 else ""
    again = f"{times}, and it is woken again until one does" if place.entry.parked else ""
    return f"its turn for {place.key!r} has come; no worker has taken it yet{again}"


def _put_off(facts: Facts) -> tuple[str, ...]:
    """Why it was put off, as its result says: a worker that has taken it may not know its limit."""
    result = facts.result
    if result is None or result.state != states.RETRY:
        return ()
    return (f"its state is {states.RETRY}: {_error_text(result.value)}",)


def _waits(place: QueuePosition, facts: Facts, clock: Clock) -> str:
    if place.entry.due is not None:
        due = clock.tell(place.entry.due)
        return f"is a retry that waits for {place.key!r} until it is due, at {due}"
    arrived = place.entry.arrived
    waits = f"has waited since {clock.tell(arrived)} for" if arrived else "waits for"
    until = f"; it gives up at {clock.tell(place.entry.until)}" if place.entry.until else ""
    return f"{waits} {place.key!r} {_behind(place, facts, clock)}{until}"


def _comes_back(place: QueuePosition, facts: Facts, clock: Clock) -> str:
    until = f" until {clock.tell(place.entry.until)}" if place.entry.until else ""
    since = f" since {clock.tell(place.entry.arrived)}" if place.entry.arrived else ""
    kept = f"has a place in the queue of {place.key!r}{since}, kept{until}"
    return f"{kept}, {_behind(place, facts, clock)}"


def _behind(place: QueuePosition, facts: Facts, clock: Clock) -> str:
    others = place.number - 1
    ahead = f", and {count(others, 'other')}" if others else ""
    place_is = f"; its place is {ordinal(place.number)} of {place.total}"
    if place.hold is not None and place.hold.until > clock.now:
        holders = [_holder(one, facts) for one in place.holders]
        by = f", and held by {listed(holders)}" if holders else ""
        return f"which is {sentence(place.hold, clock)}{by}{place_is}"
    if not place.holders:
        if place.woken:
            who = f"behind {listed(place.woken)}, woken and not taken by any worker yet"
            return f"{who}{place_is}"
        if place.retry is not None and place.retry.due is not None:
            due = clock.tell(place.retry.due)
            return f"behind the retry of {place.retry.task_id}, which is due at {due}{place_is}"
        if (at := opens(place.cooling, clock.now)) is not None:
            if is_debounced(place.key):
                return f"where it is debounced until {clock.tell(at)}{place_is}"
            return f"which is cooling down until {clock.tell(at)}{place_is}"
        wakes = "; any running worker will wake the next task" if place.entry.parked else ""
        return f"although nobody holds it now{wakes}{place_is}"
    held, *more = place.holders
    if more:
        who = listed([_holder(one, facts) for one in place.holders])
        return f"behind {who}, which hold it{ahead}{place_is}"
    token = f" with token {held.token}" if held.token else ""
    ended = (
        f" (its lease expired at {clock.tell(held.expires)})" if held.expires < clock.now else ""
    )
    since = f"which has held it since {clock.tell(held.since)}{token}{ended}"
    return f"behind {_holder(held, facts)}, {since}{ahead}{place_is}"


def _holder(held: Held, facts: Facts) -> str:
    return called(held.task_id, held.name or facts.names.get(held.task_id, ""), held.where)


def called(task_id: str, name: str, place: str = "") -> str:
    """A task by its id, and in brackets what else is known of it."""
    about = " on ".join(filter(None, (name, place)))
    return f"{task_id} ({about})" if about else task_id


#: Why a message is dead, for those who do not know the words.
CAUSES = {
    Cause.RUNS_LOST: f"{MAX_LOST_RUNS} of its runs were lost",
    Cause.UNREADABLE: "no worker could read its message",
    Cause.UNKNOWN_TASK: "no worker knows its task",
    Cause.FAILED: "it failed for good, and its key is on hold since",
    Cause.UNPUBLISHABLE: "its message could not be published",
    Cause.OTHER_BROKER: "it was to end, and no worker at its broker has ended it",
}


def is_dead(facts: Facts, clock: Clock) -> Verdict | None:
    if not _in_store(facts).dead:
        return None
    letter = _in_store(facts).dead[-1]
    done = facts.result is not None and facts.result.state == states.SUCCESS
    if done and letter.dead.cause not in HAVE_FAILED:
        return None  # a copy of its message has run, and that is how it has ended
    since = clock.tell(instant(letter.dead.at))
    why = f"has been a dead letter at {letter.key!r} since {since}: {CAUSES[letter.dead.cause]}"
    return Verdict(
        State.DEAD, (why, f"`dlock dead {facts.task_id} --replay` sends it again"), (letter.key,)
    )


#: By the certainty of what they know.
_WITNESSES = (
    runs,
    waits_in_queue,
    is_dead,
    has_ended,
    has_expired,
    has_happened,
    is_on_its_way,
)

#: What the store says for certain.
_NOW = (State.RUNNING, State.WAITING, State.WOKEN, State.DEAD)


@dataclass(frozen=True, slots=True)
class Answer:
    """What has become of one task, and why.

    Each of ``sentences`` goes on after "the task"; ``gaps`` say who could not be asked. ``keys``
    and ``tasks`` are those that the first sentences name; ``entries`` are its events in order. All
    texts may be of whoever sends messages.
    """

    task_id: str
    task_name: str | None
    state: State
    sentences: tuple[str, ...]
    gaps: tuple[str, ...]
    keys: tuple[str, ...]
    tasks: tuple[str, ...]
    entries: tuple[HistoryEntry, ...]


def explain(app: Any, task_id: str, *, unavailable: str = "") -> Answer:
    """What the store, the result backend and the history say of a task.

    It reads what the store has of that task alone; where no message, event or result tells its
    keys, how up to ten thousand of them stand.

    Those that do not answer are named in a sentence. The store is not asked if it is
    *unavailable*, which says why. Raises :exc:`~celery_dlock.ConfigurationError` when the
    configuration is not usable.
    """
    task = facts(app, task_id, store_unavailable=unavailable)
    clock = Clock.of(app, task.store.now if task.store else None)
    verdict = _verdict(task, clock)
    claims = (claim.sentence() for claim in _in_store(task).living)
    sentences = (*verdict.reasons, *claims, *besides(task, verdict.state, clock))
    return Answer(
        task_id,
        task.task_name,
        verdict.state,
        tuple(dict.fromkeys(sentences)),
        task.unavailable if verdict.state in _NOW else (*task.unavailable, *task.unset),
        verdict.keys,
        verdict.tasks,
        task.entries,
    )


def _verdict(facts: Facts, clock: Clock) -> Verdict:
    for witness in _WITNESSES:
        verdict = witness(facts, clock)
        if verdict is not None:
            return verdict
    place = "in the broker for a worker that consumes its queue"
    if any(not claim.over for claim in _in_store(facts).living):
        return Verdict(State.WAITING, (f"waits {place}, unless its message is lost",))
    if facts.store is None:
        why = f"is not known: it may run, it may wait for its key or {place}, or it never existed"
    else:
        why = f"is not known: it may wait {place}, it may have ended long ago, or it never existed"
    return Verdict(State.UNKNOWN, (why,))
