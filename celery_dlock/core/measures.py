"""What is measured: the form of a metric, and the histograms and gauges that several events share.

All names begin with ``dlock_``, and end with the unit of what has one. Three ratios are made by
whoever evaluates the counters, as the rules for Prometheus in ``monitoring/rules.yml`` do:

* ``dlock_contention_ratio``: ``dlock_refused`` among it and the locks that were had at once, which
  are ``dlock_acquisition_seconds`` less ``dlock_wait_seconds``, of which ``dlock_timed_out`` had
  none
* ``dlock_timeout_ratio``: ``dlock_timed_out`` among it and ``dlock_acquisition_seconds``
* ``dlock_stale_rejected_ratio``: ``dlock_stale_rejected`` to ``dlock_acquisition_seconds``
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """How the values of a measure add up."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One metric, of locks or of the entries of beat.

    Histograms are in seconds, as are their ``buckets``.
    """

    kind: MetricKind
    name: str
    about: str
    buckets: tuple[float, ...] = ()
    of_beat: bool = False


#: What a measure counts, or is set to if it is a gauge.
Measurement = tuple[Measure, float]


def counter(name: str, about: str, *, of_beat: bool = False) -> Measure:
    return Measure(MetricKind.COUNTER, name, about, of_beat=of_beat)


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
REFUSED = counter("dlock_refused", "Tasks that found their lock held")
WOKEN_AGAIN = counter("dlock_woken_again", "Wakes that repeat an unanswered one")

SHARED = (ACQUISITION, HOLD, TTL, WAIT, SINCE_WOKEN, REFUSED, WOKEN_AGAIN)
