"""From an event to what is measured by it: the one list that all exporters of metrics share.

All names begin with ``dlock_``, and end with the unit of what has one. Three ratios are made by
whoever evaluates the counters, as the rules for Prometheus beside this file do:

* ``dlock_contention_ratio``: ``dlock_refused`` among it and the locks that were had at once, which
  are ``dlock_acquisition_seconds`` less ``dlock_wait_seconds``, of which ``dlock_timed_out`` had
  none
* ``dlock_timeout_ratio``: ``dlock_timed_out`` among it and ``dlock_acquisition_seconds``
* ``dlock_stale_rejected_ratio``: ``dlock_stale_rejected`` to ``dlock_acquisition_seconds``

Labels are the task's name and its key's template: there are too many keys, and they say too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from celery_dlock.core.events import (
    Acquired,
    Confirmed,
    Contended,
    DeadLettered,
    Debounced,
    Deduplicated,
    Discarded,
    Dropped,
    Event,
    LeftToOthers,
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
    Uncertain,
    Unreserved,
    Woken,
)


class MetricKind(StrEnum):
    """How the values of a measure add up."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One metric. Histograms are in seconds, as are their ``buckets``."""

    kind: MetricKind
    name: str
    about: str
    buckets: tuple[float, ...] = ()


#: The danger lines of the default lease are bounds, and those of an hour's lie between bounds: what
#: lies within two is guessed, and what is above all of them is not seen.
_STORE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 60, 300, 1800)
_BODY = (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 24, 60, 120, 300, 1200, 3600)

ACQUISITION = Measure(
    MetricKind.HISTOGRAM,
    "dlock_acquisition_seconds",
    "Seconds from a delivery's first request for its lock until it was taken",
    _STORE,
)
HOLD = Measure(
    MetricKind.HISTOGRAM,
    "dlock_hold_seconds",
    "Seconds for which a lock was held until released",
    _BODY,
)
TTL = Measure(MetricKind.GAUGE, "dlock_ttl_seconds", "Seconds of the latest lease")
WAIT = Measure(
    MetricKind.HISTOGRAM,
    "dlock_wait_seconds",
    "Seconds from the first refusal, or from taking a place, until the lock or the timeout",
    _BODY,
)
SINCE_WOKEN = Measure(
    MetricKind.HISTOGRAM,
    "dlock_woken_seconds",
    "Seconds from the wake until the lock was taken",
    _STORE,
)
REFUSED = Measure(MetricKind.COUNTER, "dlock_refused", "Tasks that found their lock held")
TIMED_OUT = Measure(MetricKind.COUNTER, "dlock_timed_out", "Tasks that waited too long and gave up")
STALE = Measure(MetricKind.COUNTER, "dlock_stale_rejected", "Late writes that the fence refused")
LOST = Measure(MetricKind.COUNTER, "dlock_lost", "Locks that were lost while their body ran")
UNAVAILABLE = Measure(
    MetricKind.COUNTER,
    "dlock_unavailable",
    "Times that the lock store did not answer, or refused a write",
)
RESCHEDULED = Measure(MetricKind.COUNTER, "dlock_rescheduled", "Messages that were published again")
PARKED = Measure(MetricKind.COUNTER, "dlock_parked", "Messages that were parked in the lock store")
WOKEN = Measure(MetricKind.COUNTER, "dlock_woken", "Messages that were woken from the lock store")
WOKEN_AGAIN = Measure(
    MetricKind.COUNTER, "dlock_woken_again", "Wakes that repeat an unanswered one"
)
LEFT_TO_OTHERS = Measure(
    MetricKind.COUNTER,
    "dlock_left_to_others",
    "Messages of another broker, left in the lock store for its workers",
)
SKIPPED = Measure(
    MetricKind.COUNTER, "dlock_skipped", "Tasks that were skipped because their lock was held"
)
DROPPED = Measure(MetricKind.COUNTER, "dlock_dropped", "Duplicates of messages that were dropped")
DEBOUNCED = Measure(
    MetricKind.COUNTER, "dlock_debounced", "Calls of debounced tasks that wait, or replace another"
)
DEDUPLICATED = Measure(
    MetricKind.COUNTER, "dlock_deduplicated", "Calls of unique tasks that were duplicates"
)
REVOKED = Measure(MetricKind.COUNTER, "dlock_revoked", "Tasks that were revoked while they waited")
DEAD_LETTERED = Measure(
    MetricKind.COUNTER, "dlock_dead_lettered", "Messages that became dead letters"
)
TOO_LARGE = Measure(
    MetricKind.COUNTER, "dlock_too_large", "Messages too large to be parked in the lock store"
)
TICKS_SENT = Measure(MetricKind.COUNTER, "dlock_beat_sent", "Ticks that beat has sent")
TICKS_REPEATED = Measure(
    MetricKind.COUNTER, "dlock_beat_repeated", "Ticks that may have been sent twice"
)
TICKS_MISSED = Measure(
    MetricKind.COUNTER, "dlock_beat_missed", "Times that ticks were missed: overdue, and never sent"
)

#: Of every lock; those of beat are of its entries.
OF_LOCKS = (
    *(ACQUISITION, HOLD, TTL, WAIT, SINCE_WOKEN, REFUSED, TIMED_OUT, STALE, LOST, UNAVAILABLE),
    *(RESCHEDULED, PARKED, WOKEN, WOKEN_AGAIN, LEFT_TO_OTHERS, SKIPPED, DROPPED, DEDUPLICATED),
    *(DEBOUNCED, REVOKED, DEAD_LETTERED, TOO_LARGE),
)
OF_BEAT = (TICKS_SENT, TICKS_REPEATED, TICKS_MISSED)
MEASURES = (*OF_LOCKS, *OF_BEAT)

Measurement = tuple[Measure, float]


def measurements(event: Event) -> Sequence[Measurement]:  # noqa: C901 (as long as the list of events)
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
        case Contended():
            return ((REFUSED, 1),) if event.attempt == 0 else ()
        case Rescheduled():
            return ((RESCHEDULED, 1),)
        case Woken(before=before):
            return ((WOKEN, 1), (WOKEN_AGAIN, 1)) if before else ((WOKEN, 1),)
        case LeftToOthers():
            return ((LEFT_TO_OTHERS, 1),)
        case TooLarge():
            return ((TOO_LARGE, 1),)
        case Revoked():
            return ((REVOKED, 1),)
        case DeadLettered():
            return ((DEAD_LETTERED, 1),)
        case Skipped():
            return ((SKIPPED, 1),)
        case Dropped():
            return ((DROPPED, 1),)
        case Deduplicated():
            return ((DEDUPLICATED, 1),)
        case Debounced():
            return ((DEBOUNCED, 1),)
        case Lost(newer=newer):
            return ((LOST, 1),) if newer is None else ()
        case Uncertain() | Confirmed() | Discarded() | Unreserved():
            return ()
        case StaleRejected():
            return ((STALE, 1),)
        case Unavailable():
            return ((UNAVAILABLE, 1),)
        case TickSent():
            return ((TICKS_SENT, 1),)
        case TickRepeated():
            return ((TICKS_REPEATED, 1),)
        case TicksMissed():
            return ((TICKS_MISSED, 1),)
        case _:
            assert_never(event)


def _acquired(event: Acquired) -> list[Measurement]:
    measured = [(ACQUISITION, event.took), (TTL, event.ttl)]
    if event.waited:
        measured.append((WAIT, event.waited))
    if event.since_woken is not None:
        measured.append((SINCE_WOKEN, event.since_woken))
    return measured
