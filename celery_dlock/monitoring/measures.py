"""From an event to what is measured by it: the one list that all exporters of metrics share.

The five of the literature keep their names. Two are histograms here; the three rates are made by
whoever evaluates the counters, as the rules for Prometheus beside this file do:

* ``lock_contention_rate``: ``dlock_refused`` among it and ``lock_acquisition_time``
* ``lock_timeout_rate``: ``dlock_timed_out`` among it and ``lock_acquisition_time``
* ``fencing_token_reject_rate``: ``dlock_stale_rejected`` to ``lock_acquisition_time``

Labels are the task's name and its key's template: there are too many keys, and they say too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from celery_dlock.core.events import (
    Acquired,
    Buried,
    Contended,
    Dropped,
    Event,
    Lost,
    Parked,
    Released,
    Rescheduled,
    Revoked,
    Skipped,
    StaleRejected,
    TickRepeated,
    TickSent,
    TicksMissed,
    TimedOut,
    TooLarge,
    Unavailable,
    Woken,
)


class Kind(StrEnum):
    """How the values of a measure add up."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One metric. Histograms are in seconds, as are their ``buckets``."""

    kind: Kind
    name: str
    about: str
    buckets: tuple[float, ...] = ()


#: The danger lines of the default lease are bounds, and those of an hour's lie between bounds: what
#: lies within two is guessed, and what is above all of them is not seen.
_STORE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 60, 300, 1800)
_BODY = (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 24, 60, 120, 300, 1200, 3600)

ACQUISITION = Measure(
    Kind.HISTOGRAM,
    "lock_acquisition_time",
    "Seconds for which a delivery asked for its lock until it had it",
    _STORE,
)
HOLD = Measure(
    Kind.HISTOGRAM, "lock_hold_duration", "Seconds for which a lock was held until released", _BODY
)
TTL = Measure(Kind.GAUGE, "lock_ttl_seconds", "Length of the lease that was taken last, in seconds")
WAIT = Measure(
    Kind.HISTOGRAM,
    "dlock_wait_seconds",
    "Seconds from the first refusal, or the place taken, until the lock or until giving up",
    _BODY,
)
HAND_OVER = Measure(
    Kind.HISTOGRAM,
    "dlock_hand_over_seconds",
    "Seconds from the call out of the queue until the lock",
    _STORE,
)
REFUSED = Measure(Kind.COUNTER, "dlock_refused", "Asks for a lock that another one held")
TIMED_OUT = Measure(Kind.COUNTER, "dlock_timed_out", "Tasks that waited too long and gave up")
STALE = Measure(Kind.COUNTER, "dlock_stale_rejected", "Late writes that the fence refused")
LOST = Measure(Kind.COUNTER, "dlock_lost", "Locks that were lost while their body ran")
UNAVAILABLE = Measure(Kind.COUNTER, "dlock_unavailable", "Times that the lock store did not answer")
RESCHEDULED = Measure(Kind.COUNTER, "dlock_rescheduled", "Messages that were published again")
PARKED = Measure(Kind.COUNTER, "dlock_parked", "Messages that went to wait in the lock store")
WOKEN = Measure(Kind.COUNTER, "dlock_woken", "Messages that were called out of the lock store")
SKIPPED = Measure(Kind.COUNTER, "dlock_skipped", "Tasks that did not run, as their lock was held")
DROPPED = Measure(Kind.COUNTER, "dlock_dropped", "Duplicates of messages that were dropped")
REVOKED = Measure(Kind.COUNTER, "dlock_revoked", "Tasks that were revoked while they waited")
BURIED = Measure(Kind.COUNTER, "dlock_buried", "Messages that were put aside as dead")
TOO_LARGE = Measure(Kind.COUNTER, "dlock_too_large", "Messages too large to wait in the lock store")
TICKS_SENT = Measure(Kind.COUNTER, "dlock_beat_sent", "Ticks that beat has sent")
TICKS_REPEATED = Measure(Kind.COUNTER, "dlock_beat_repeated", "Ticks that may have been sent twice")
TICKS_MISSED = Measure(Kind.COUNTER, "dlock_beat_missed", "Times that overdue ticks were left out")

#: Of every lock; those of beat are of its entries.
OF_LOCKS = (
    *(ACQUISITION, HOLD, TTL, WAIT, HAND_OVER, REFUSED, TIMED_OUT, STALE, LOST, UNAVAILABLE),
    *(RESCHEDULED, PARKED, WOKEN, SKIPPED, DROPPED, REVOKED, BURIED, TOO_LARGE),
)
OF_BEAT = (TICKS_SENT, TICKS_REPEATED, TICKS_MISSED)
MEASURES = (*OF_LOCKS, *OF_BEAT)

Measurement = tuple[Measure, float]

_Once = (
    Contended
    | Rescheduled
    | Woken
    | TooLarge
    | Revoked
    | Buried
    | Skipped
    | Dropped
    | Lost
    | StaleRejected
    | Unavailable
)


def measurements(event: Event) -> Sequence[Measurement]:
    """What *event* adds to which measure; a gauge is set to it."""
    match event:
        case Acquired():
            return _acquired(event)
        case Released():
            return ((HOLD, event.held),)
        case Parked():
            return ((PARKED, 1), (REFUSED, 1)) if event.refused else ((PARKED, 1),)
        case TimedOut():
            return ((TIMED_OUT, 1), (WAIT, event.waited))
        case TickSent() | TickRepeated() | TicksMissed():
            return ((_tick(event), 1),)
        case _:
            return ((_counted(event), 1),)


def _acquired(event: Acquired) -> list[Measurement]:
    found = [(ACQUISITION, event.took), (TTL, event.ttl)]
    if event.waited:
        found.append((WAIT, event.waited))
    if event.handed_over is not None:
        found.append((HAND_OVER, event.handed_over))
    return found


def _tick(event: TickSent | TickRepeated | TicksMissed) -> Measure:
    match event:
        case TickSent():
            return TICKS_SENT
        case TickRepeated():
            return TICKS_REPEATED
        case TicksMissed():
            return TICKS_MISSED
        case _:
            assert_never(event)


def _counted(event: _Once) -> Measure:  # noqa: C901 (as long as the list of events)
    match event:
        case Contended():
            return REFUSED
        case Rescheduled():
            return RESCHEDULED
        case Woken():
            return WOKEN
        case TooLarge():
            return TOO_LARGE
        case Revoked():
            return REVOKED
        case Buried():
            return BURIED
        case Skipped():
            return SKIPPED
        case Dropped():
            return DROPPED
        case Lost():
            return LOST
        case StaleRejected():
            return STALE
        case Unavailable():
            return UNAVAILABLE
        case _:
            assert_never(event)
