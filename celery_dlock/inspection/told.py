"""An event of the history as a sentence without its subject, for timelines and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_dlock.inspection.wording import Clock, count, seconds, short
from celery_dlock.monitoring.history_reader import Entry


def told(entry: Entry, clock: Clock) -> str:
    """What happened and when, such as ``at 12:03:11 took 'order:42' with token 17``."""
    words = _WORDS.get(entry.event, _unknown)
    return f"at {clock.tell(entry.at)} {words(entry, entry.details)}"


def _acquired(entry: Entry, details: Mapping[str, Any]) -> str:
    token = f" with token {entry.token}" if entry.token else ""
    waited = details.get("waited") or 0.0
    after = f" after it had waited {seconds(waited)}" if waited else ""
    return f"took {entry.key!r}{token}{after}"


def _contended(entry: Entry, details: Mapping[str, Any]) -> str:
    holder = details.get("holder")
    by = f"was held by {holder}" if holder else "was reserved for one that waits"
    return f"was refused: {entry.key!r} {by}"


def _skipped(entry: Entry, details: Mapping[str, Any]) -> str:
    holder = details.get("holder")
    by = f"was held by {holder}" if holder else "had a newer one waiting, which took its place"
    return f"was skipped: {entry.key!r} {by}"


def _parked(entry: Entry, details: Mapping[str, Any]) -> str:
    how = "was refused and waits" if details.get("refused") else "took its place as it was sent"
    return f"{how} in the queue of {entry.key!r}"


def _woken(entry: Entry, details: Mapping[str, Any]) -> str:
    ending = details.get("ending")
    why = f"to end, because it was {ending}" if ending else "because its turn had come"
    return f"was called from the queue of {entry.key!r} {why}"


def _rescheduled(entry: Entry, details: Mapping[str, Any]) -> str:
    countdown = float(details.get("countdown") or 0.0)
    return f"was rescheduled by {seconds(countdown)}: {short(details.get('reason'))}"


def _released(entry: Entry, details: Mapping[str, Any]) -> str:
    held = float(details.get("held") or 0.0)
    ended = _OUTCOMES.get(str(details.get("outcome")), str(details.get("outcome")))
    return f"gave {entry.key!r} back after {seconds(held)}: {ended}"


def _timed_out(entry: Entry, details: Mapping[str, Any]) -> str:
    return f"gave up on {entry.key!r} after {seconds(float(details.get('waited') or 0.0))}"


def _unknown(entry: Entry, details: Mapping[str, Any]) -> str:
    return f"{entry.event} {entry.key or ''} {short(dict(details))}"


_OUTCOMES = {
    "done": "it had ended",
    "over": "its delivery ended, and it goes on elsewhere or not at all",
    "repeat": "its lock was lost, and it runs again",
    "abandoned": "its run was lost",
    "unused": "its message went back to the broker",
}

_WORDS: Mapping[str, Callable[[Entry, Mapping[str, Any]], str]] = {
    "Acquired": _acquired,
    "Contended": _contended,
    "Skipped": _skipped,
    "Parked": _parked,
    "Woken": _woken,
    "Rescheduled": _rescheduled,
    "Released": _released,
    "TimedOut": _timed_out,
    "TooLarge": lambda _, d: f"was too large for the lock store, with {d.get('size')} bytes",
    "Revoked": lambda entry, _: f"was revoked while it waited for {entry.key!r}",
    "Buried": lambda entry, d: f"was put aside as dead, of {entry.key!r}: {d.get('cause')}",
    "Dropped": lambda _, d: f"had a copy dropped, because it was {d.get('reason')} already",
    "Lost": lambda entry, d: f"lost {entry.key!r}: {short(d.get('reason'))}",
    "StaleRejected": lambda entry, _: f"was refused a late write to {entry.key!r}",
    "Unavailable": lambda _, d: f"got no answer from the lock store: {short(d.get('error'))}",
    "TickSent": lambda _, d: f"sent the tick of {d.get('due')}",
    "TickRepeated": lambda _, d: f"sent the tick of {d.get('due')} again",
    "TicksMissed": lambda _, d: f"left out the ticks from {d.get('first')} to {d.get('until')}",
    "Missing": lambda _, d: f"{count(int(d.get('events') or 0), 'event')} could not be kept",
}
