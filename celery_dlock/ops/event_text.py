"""Instants, ordinals, names and events as they stand in a sentence, for timelines and answers.

What others sent stays plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Self

from celery_dlock.monitoring.history_reader import HistoryEntry

#: Of an error so many characters go into a sentence.
LONGEST_ERROR = 400

#: Seconds of a day, an hour and a minute, with the unit below.
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


@dataclass(frozen=True, slots=True)
class Clock:
    """How instants are told: in the application's time zone, with the date if it is another day.

    *now* is the lock store's, where that was asked: what it says is compared with it.
    """

    now: datetime
    zone: tzinfo

    @classmethod
    def of(cls, app: Any, now: datetime | None = None) -> Self:
        return cls(now or datetime.now(UTC), app.timezone)

    def tell(self, instant: datetime) -> str:
        local, today = instant.astimezone(self.zone), self.now.astimezone(self.zone)
        return f"{local:%H:%M:%S}" if local.date() == today.date() else f"{local:%Y-%m-%d %H:%M:%S}"

    def tell_seconds(self, since_1970: object) -> str | None:
        """The same for what others have written down; ``None`` for what is no instant."""
        if not isinstance(since_1970, int | float):
            return None
        try:
            return self.tell(datetime.fromtimestamp(since_1970, UTC))
        except (ValueError, OverflowError, OSError):
            return None

    def until(self, instant: datetime) -> float:
        """Seconds from now on; negative if it has passed."""
        return (instant - self.now).total_seconds()


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number % 10, 'th')}"


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


def lasting(duration: float) -> str:
    """A *duration* in seconds in its two largest units, rounded down: ``48 s``, ``3 min 5 s``."""
    whole = max(0, int(duration))
    for size, unit, below, smaller in _UNITS:
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def short(text: object) -> str:
    """*text*, or its beginning."""
    whole = str(text)
    return whole if len(whole) <= LONGEST_ERROR else f"{whole[: LONGEST_ERROR - 1]}…"


def describe(entry: HistoryEntry, clock: Clock) -> str:
    """What happened and when, such as ``at 12:03:11 took 'order:42' with token 17``."""
    return f"at {clock.tell(entry.at)} {happened(entry)}"


def happened(entry: HistoryEntry) -> str:
    """The same without when."""
    return _DESCRIPTIONS.get(entry.event, _unknown)(entry, entry.details)


def _acquired(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    token = f" with token {entry.token}" if entry.token else ""
    waited = details.get("waited") or 0.0
    after = f" after waiting {seconds(waited)}" if waited else ""
    return f"took {entry.key!r}{token}{after}"


def _contended(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    holder = details.get("holder")
    by = (
        f"was held by {holder}"
        if holder
        else "was reserved for a waiting task, or was cooling down"
    )
    if hold := details.get("hold"):
        by = f"was on hold, by {short(hold)}"
    return f"was refused: {entry.key!r} {by}"


def _skipped(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    holder = details.get("holder")
    if reason := details.get("reason"):
        return f"was skipped: {short(reason)}"
    by = f"was held by {holder}" if holder else "was reserved for a waiting task"
    return f"was skipped: {entry.key!r} {by}"


def _parked(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    hold = details.get("hold")
    why = f", which was on hold, by {short(hold)}" if hold else ""
    if details.get("refused"):
        return f"was refused and waits in the queue of {entry.key!r}{why}"
    return f"took its place in the queue of {entry.key!r} when it was published{why}"


def _deduplicated(_: HistoryEntry, details: Mapping[str, Any]) -> str:
    living = details.get("living")
    if details.get("published"):
        return f"was found to be a duplicate of {living}, which lives, and does not run"
    return f"was not published: the call was answered with {living}, which lives"


def _debounced(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    living = details.get("living")
    if living == entry.task_id:
        return f"was debounced at {entry.key!r}"
    return f"was debounced at {entry.key!r}: {living} has its message"


def _woken(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    ending = details.get("ending")
    why = f"to end: {ending}" if ending else "because its turn had come"
    before, queue = int(details.get("before") or 0), details.get("queue")
    again = f" again, after {count(before, 'unanswered wake')}," if before else ""
    to = f", and sent to {short(queue)}" if queue else ""
    return f"was woken{again} from the queue of {entry.key!r} {why}{to}"


def _rescheduled(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    countdown = float(details.get("countdown") or 0.0)
    return f"was rescheduled by {seconds(countdown)}: {short(details.get('reason'))}"


def _released(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    held = float(details.get("held") or 0.0)
    ended = _OUTCOMES.get(str(details.get("outcome")), str(details.get("outcome")))
    return f"released {entry.key!r} after {seconds(held)}: {ended}"


def _timed_out(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    return f"gave up waiting for {entry.key!r} after {seconds(float(details.get('waited') or 0.0))}"


def _unknown(entry: HistoryEntry, details: Mapping[str, Any]) -> str:
    return f"{entry.event} {entry.key or ''} {short(dict(details))}"


_OUTCOMES = {
    "done": "it had ended",
    "over": "its delivery ended; the task goes on elsewhere or not at all",
    "repeat": "its lock was lost, and it runs again",
    "abandoned": "its run was lost",
    "unused": "its message went back to the broker",
}

_DESCRIPTIONS: Mapping[str, Callable[[HistoryEntry, Mapping[str, Any]], str]] = {
    "Acquired": _acquired,
    "Contended": _contended,
    "Skipped": _skipped,
    "Parked": _parked,
    "Woken": _woken,
    "Rescheduled": _rescheduled,
    "Released": _released,
    "TimedOut": _timed_out,
    "LeftToOthers": lambda entry, d: (
        f"was woken for {entry.key!r} and left to the workers at its broker {d.get('broker')}"
    ),
    "TooLarge": lambda _, d: f"was too large for the lock store, with {d.get('size')} bytes",
    "Revoked": lambda entry, _: f"was revoked while it waited for {entry.key!r}",
    "DeadLettered": lambda entry, d: f"became a dead letter at {entry.key!r}: {d.get('cause')}",
    "Discarded": lambda entry, d: f"was discarded at {entry.key!r}, by {d.get('by')}",
    "Dropped": lambda _, d: f"had a duplicate dropped, because it was already {d.get('reason')}",
    "Deduplicated": _deduplicated,
    "Debounced": _debounced,
    "Lost": lambda entry, d: f"lost {entry.key!r}: {short(d.get('reason'))}",
    "Uncertain": lambda entry, d: (
        f"was uncertain of {entry.key!r}, which was not renewed in time, for the next "
        f"{seconds(float(d.get('left') or 0.0))} at most"
    ),
    "Confirmed": lambda entry, _: f"was certain of {entry.key!r} again",
    "StaleRejected": lambda entry, _: f"was refused a late write to {entry.key!r}",
    "Unavailable": lambda _, d: f"got no answer from the lock store: {short(d.get('error'))}",
    "TickSent": lambda _, d: f"sent the tick of {d.get('due')}",
    "TickRepeated": lambda _, d: f"sent the tick of {d.get('due')} again",
    "TicksMissed": lambda _, d: f"skipped the ticks from {d.get('first')} to {d.get('until')}",
    "Missing": lambda _, d: f"{count(int(d.get('events') or 0), 'event')} could not be stored",
}
