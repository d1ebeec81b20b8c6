"""Reasons from what was written down: a final result, the last event, a word of Celery's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import states

from celery_dlock.errors import LockContended, LockTimeout
from celery_dlock.inspection.facts import Facts
from celery_dlock.inspection.results import Result
from celery_dlock.inspection.told import told
from celery_dlock.inspection.verdict import State, Verdict
from celery_dlock.inspection.wording import Clock, count, seconds, short
from celery_dlock.monitoring.history_reader import Entry


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
        return _of(State.REVOKED, event, clock) if event else _revoked(at)
    if result.state == states.FAILURE:
        return _failure(result, at)
    return None


def has_happened(facts: Facts, clock: Clock) -> Verdict | None:
    """By the last event that decides anything."""
    last = facts.latest(*_AFTER)
    if last is None:
        return None
    state = _AFTER[last.event]
    if last.event == "Dropped":
        return _dropped(facts, last, clock)
    if last.event == "Released":
        state = _RELEASED.get(str(last.details.get("outcome")), State.UNKNOWN)
    if last.event == "Rescheduled":
        return _rescheduled(facts, last, clock)
    if facts.standing is None:
        return _of(_WITHOUT_STORE.get(last.event, state), last, clock)
    return _of(state, last, clock, _HINTS.get(last.event))


def is_on_its_way(facts: Facts, clock: Clock) -> Verdict | None:
    """By a state that is not final, which may be an old one."""
    result = facts.result
    if result is None:
        return None
    if result.state == states.RETRY:
        error = result.value
        keys = (error.key,) if isinstance(error, LockContended) else ()
        tasks = (error.holder,) if isinstance(error, LockContended) and error.holder else ()
        why = f"was rescheduled: {short(error)}"
        return Verdict(State.RESCHEDULED, (why,), keys, tasks)
    if result.state == states.STARTED:
        why = "was started by a worker, and holds no lock: it may ask for it, or be gone"
        return Verdict(State.RUNNING, (why,))
    why = f"the result backend says {short(result.state)}, and the lock store knows nothing of it"
    return Verdict(State.UNKNOWN, (why,))


def besides(facts: Facts, state: State, clock: Clock) -> list[str]:
    """What else has happened to it, that a person should know."""
    found: list[str] = []
    for event, told_by in _BESIDES:
        entries = facts.all(event)
        if entries and state is not told_by:
            often = f" ({count(len(entries), 'time')} in all)" if len(entries) > 1 else ""
            found.append(f"{told(entries[-1], clock)}{often}")
    return found


def _skip(skip: Any, at: str, clock: Clock) -> Verdict:
    key, holder, since, reason = (skip.get(name) for name in ("key", "holder", "since", "reason"))
    tasks = (holder,) if isinstance(holder, str) else ()
    if reason is not None:
        why = short(reason)
    elif holder is None:
        why = f"{key!r} was reserved for one that waits"
    else:
        then = clock.tell_seconds(since)
        why = f"{key!r} was held by {short(holder)}{f' since {then}' if then else ''}"
    return Verdict(State.SKIPPED, (f"was skipped{at}: {why}",), (str(key),), tasks)


def _failure(result: Result, at: str) -> Verdict:
    error = result.value
    if not isinstance(error, LockContended):
        why = f"failed{at}: {type(error).__name__}: {short(error)}"
        key = getattr(error, "key", None)
        return Verdict(State.FAILED, (why,), (key,) if isinstance(key, str) else ())
    if isinstance(error, LockTimeout) and error.holder is None:
        why = f"it gave up after it had waited {seconds(error.waited)} for {error.key!r}"
    else:
        why = short(error)
    tasks = (error.holder,) if error.holder else ()
    return Verdict(
        State.FAILED, (f"failed{at}: {type(error).__name__}: {why}",), (error.key,), tasks
    )


def _revoked(at: str) -> Verdict:
    return Verdict(State.REVOKED, (f"was revoked{at}",))


def _dropped(facts: Facts, last: Entry, clock: Clock) -> Verdict:
    """A copy was; the task itself may have been through before."""
    ran = next((e for e in facts.all("Released") if e.details.get("outcome") == "done"), None)
    reason = str(last.details.get("reason"))
    at = clock.tell(last.at)
    why = f"had a delivery dropped at {at}: {facts.task_id} is {reason} already"
    if ran is not None and reason == "done":
        return Verdict(State.DONE, (told(ran, clock), why), _keys(ran))
    return Verdict(State.DROPPED, (why,), _keys(last))


def _rescheduled(facts: Facts, last: Entry, clock: Clock) -> Verdict:
    refused = facts.latest("Contended")
    holder = refused.details.get("holder") if refused else None
    return Verdict(
        State.RESCHEDULED,
        tries(facts, last, clock),
        _keys(refused) if refused else (),
        (holder,) if isinstance(holder, str) else (),
    )


def tries(facts: Facts, last: Entry, clock: Clock) -> tuple[str, ...]:
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
    why = f"was rescheduled {times}, at {clock.tell(last.at)} because of this: {reason}"
    return why, following


def _of(state: State, entry: Entry, clock: Clock, hint: str | None = None) -> Verdict:
    holder = entry.details.get("holder")
    reasons = (told(entry, clock), hint) if hint else (told(entry, clock),)
    return Verdict(state, reasons, _keys(entry), (holder,) if isinstance(holder, str) else ())


def _keys(entry: Entry) -> tuple[str, ...]:
    return (entry.key,) if entry.key is not None else ()


#: What is so after an event, unless somebody else knows better: of some only the store does.
_AFTER = {
    "Acquired": State.UNKNOWN,
    "Lost": State.UNKNOWN,
    "Parked": State.UNKNOWN,
    "Contended": State.UNKNOWN,
    "Unavailable": State.UNKNOWN,
    "TooLarge": State.UNKNOWN,
    "Released": State.DONE,
    "Dropped": State.DROPPED,
    "Rescheduled": State.RESCHEDULED,
    "Woken": State.CALLED,
    "Skipped": State.SKIPPED,
    "TimedOut": State.FAILED,
    "Revoked": State.REVOKED,
    "Buried": State.DEAD,
}

_WITHOUT_STORE = {"Acquired": State.RUNNING, "Parked": State.WAITING}

_RELEASED = {
    "done": State.DONE,
    "over": State.RESCHEDULED,
    "repeat": State.RESCHEDULED,
    "abandoned": State.UNKNOWN,
    "unused": State.RESCHEDULED,
}

_HINTS = {
    "Acquired": "it holds nothing any more: it has ended just now, or its worker is gone",
    "Lost": "nothing says how it ended: its body may run on without it, or its worker is gone",
    "Parked": "the lock store has it no more, and nothing says what became of it",
    "Contended": "nothing says what became of it",
    "Woken": "no worker has taken it since: does one consume its queue?",
    "Buried": "it is not among the dead any more",
}

_BESIDES = (
    ("Lost", None),
    ("StaleRejected", None),
    ("Dropped", State.DROPPED),
    ("Unavailable", None),
    ("TooLarge", None),
    ("Rescheduled", State.RESCHEDULED),
)
