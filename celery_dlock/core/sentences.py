"""What happened to a lock, in one sentence that goes on after the name of the task.

The log, the commands and the page say the same. It is made of plain values, as the history keeps
them: ``key``, ``token`` and ``task_id``, and what the kind of event has besides. What others sent
stays plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Of an error so many characters go into a sentence.
LONGEST_ERROR = 400

Details = Mapping[str, Any]


def count(number: int, one: str, more: str | None = None) -> str:
    """``1 time``, ``2 times``."""
    return f"{number} {one if number == 1 else more or f'{one}s'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """*names* with commas and an "and"; of many the first *most*."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def short(text: object) -> str:
    """*text*, or its beginning."""
    whole = str(text)
    return whole if len(whole) <= LONGEST_ERROR else f"{whole[: LONGEST_ERROR - 1]}…"


def sentence(event: str, details: Details) -> str:
    """What happened, such as ``took 'order:42' with token 17``."""
    if event not in _SENTENCES:
        return f"{event} {details.get('key') or ''} {short(dict(details))}"
    return _SENTENCES[event](details)


def _acquired(details: Details) -> str:
    token = f" with token {details['token']}" if details.get("token") else ""
    waited = details.get("waited") or 0.0
    after = f" after waiting {seconds(waited)}" if waited else ""
    return f"took {details['key']!r}{token}{after}"


def _why_refused(details: Details) -> str:
    if hold := details.get("hold"):
        return f"was on hold, by {short(hold)}"
    if holder := details.get("by") or details.get("holder"):
        return f"was held by {holder}"
    return "was reserved for a waiting task, or was cooling down"


def _skipped(details: Details) -> str:
    if reason := details.get("reason"):
        return f"was skipped: {short(reason)}"
    return f"was skipped: {details['key']!r} {_why_refused(details)}"


def _parked(details: Details) -> str:
    if not details.get("refused"):
        hold = details.get("hold")
        why = f", which was on hold, by {short(hold)}" if hold else ""
        return f"was parked at {details['key']!r} when it was published{why}"
    why = f", which {_why_refused(details)}"
    if details.get("holder") == details["task_id"]:
        why = ": another delivery of it was running"
    return f"was refused and parked at {details['key']!r}{why}"


def _woken(details: Details) -> str:
    ending = details.get("ending")
    why = f"to end: {ending}" if ending else "because its turn had come"
    before, queue = int(details.get("before") or 0), details.get("queue")
    again = f" again, after {count(before, 'unanswered wake')}," if before else ""
    to = f", and sent to {short(queue)}" if queue else ""
    return f"was woken{again} from the queue of {details['key']!r} {why}{to}"


def _deduplicated(details: Details) -> str:
    lives = f"{details.get('living')}, which lives under the unique claim {details.get('claim')!r}"
    if details.get("published"):
        return f"was found to be a duplicate of {lives}: it does not run"
    return f"was not published: the call was answered with {lives}"


def _debounced(details: Details) -> str:
    living = details.get("living")
    has_it = "" if living == details["task_id"] else f": {living} has its message"
    return f"was debounced at {details['key']!r}{has_it}"


def _lost(details: Details) -> str:
    intended = "" if details.get("newer") is None else " as intended"
    return f"lost its lock on {details['key']!r}{intended}: {short(details.get('reason'))}"


_OUTCOMES = {
    "done": "it had ended",
    "over": "its delivery ended; the task goes on elsewhere or not at all",
    "repeat": "its lock was lost, and it runs again",
    "abandoned": "its run was lost",
    "unused": "its message went back to the broker",
}


def _released(details: Details) -> str:
    held, outcome = float(details.get("held") or 0.0), str(details.get("outcome"))
    ended = _OUTCOMES.get(outcome, outcome)
    return f"released {details['key']!r} after {seconds(held)}: {ended}"


_SENTENCES: Mapping[str, Callable[[Details], str]] = {
    "Acquired": _acquired,
    "Contended": lambda d: f"was refused: {d['key']!r} {_why_refused(d)}",
    "Skipped": _skipped,
    "Parked": _parked,
    "Woken": _woken,
    "Rescheduled": lambda d: (
        f"was rescheduled by {seconds(float(d.get('countdown') or 0.0))}: {short(d.get('reason'))}"
    ),
    "Released": _released,
    "TimedOut": lambda d: (
        f"gave up waiting for {d['key']!r} after {seconds(float(d.get('waited') or 0.0))}"
    ),
    "Unreserved": lambda d: (
        f"no longer has {d['key']!r} reserved: it waits for {d.get('another')!r}, which is "
        f"reserved for a task that waits for {d['key']!r}"
    ),
    "LeftToOthers": lambda d: (
        f"was woken for {d['key']!r} and left to the workers at its broker {d.get('broker')}"
    ),
    "TooLarge": lambda d: (
        f"was too large to be parked, with {d.get('size')} bytes: it waits in the broker"
    ),
    "Revoked": lambda d: f"was revoked while it waited for {d['key']!r}",
    "DeadLettered": lambda d: f"became a dead letter at {d['key']!r}: {d.get('cause')}",
    "Discarded": lambda d: f"was discarded at {d['key']!r}, by {d.get('by')}",
    "Dropped": lambda d: (
        f"had a duplicate dropped at {d['key']!r}, because it was already {d.get('reason')}"
    ),
    "Deduplicated": _deduplicated,
    "Debounced": _debounced,
    "Lost": _lost,
    "Uncertain": lambda d: (
        f"was uncertain of its lock on {d['key']!r}, which was not renewed in time, for the next "
        f"{seconds(float(d.get('left') or 0.0))} at most"
    ),
    "Confirmed": lambda d: f"was certain of its lock on {d['key']!r} again",
    "StaleRejected": lambda d: (
        f"was refused a late write to {d['key']!r} with token {d.get('token')}"
    ),
    "Unavailable": lambda d: f"got no answer from the lock store: {short(d.get('error'))}",
    "TickSent": lambda d: f"sent the tick of {d.get('due')}",
    "TickRepeated": lambda d: (
        f"sent the tick of {d.get('due')} again: a previous beat may have sent it or not"
    ),
    "TicksMissed": lambda d: (
        f"missed the ticks from {d.get('first')} on and before {d.get('until')}"
    ),
    "Missing": lambda d: f"{count(int(d.get('events') or 0), 'event')} could not be stored",
}
