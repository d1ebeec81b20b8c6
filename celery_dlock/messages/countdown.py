"""Who waits for a countdown, broker or worker, and how long it may be.

A message with a countdown is not acknowledged before it is due. A broker with a visibility timeout
delivers one that waits for longer than that again while it waits, and again, without end
(celery/celery#3270, #4400); and each duplicate that meets the running task would
leave one of its own.

With RabbitMQ's quorum queues Celery has the broker wait (its native delayed delivery). That counts
whole seconds, from one on, and fails below: for less than a second the worker waits, as it does
where RabbitMQ would not find the way back (``way_back.py``).
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from celery.utils.quorum_queues import detect_quorum_queues
from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_dlock.core.checks import duration


def seconds_until(app: Any, when: float | datetime | str) -> float:
    """How far off *when* is, which may be a number of seconds itself; not negative."""
    if isinstance(when, int | float):
        return max(0.0, when)
    left: timedelta = maybe_make_aware(maybe_iso8601(when)) - maybe_make_aware(app.now())
    return max(0.0, left.total_seconds())


def rabbitmq_waits(app: Any) -> bool:
    """Whether Celery leaves countdowns to RabbitMQ."""
    kind = app.producer_pool.connections.connection.transport.driver_type
    return bool(detect_quorum_queues(app, kind)[0])


def countdown_from(app: Any, seconds: float) -> float:
    """*seconds*, or the least more that Celery can publish a message with."""
    return max(1.0, seconds) if rabbitmq_waits(app) else seconds


#: What kombu takes where ``broker_transport_options`` says nothing, in seconds.
_USUAL = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "sqs": 1800.0}

#: How long a finished task is remembered at least, in seconds, where ``dlock_done_ttl`` is not set.
REMEMBERED = 7200.0


def visibility_timeout(app: Any) -> float:
    """Seconds; infinite for a broker that keeps to the connection instead."""
    options = app.conf.broker_transport_options or {}
    if "visibility_timeout" in options:
        return duration("visibility_timeout", options["visibility_timeout"])
    urls = app.conf.broker_read_url or ""
    first = urls if isinstance(urls, str) else urls[0]
    return _USUAL.get(first.partition("://")[0].partition("+")[0], math.inf)


def longest_countdown(app: Any) -> float:
    """Seconds that a message may wait to be due, with time to be delivered and acknowledged."""
    return visibility_timeout(app) / 2


def remembered(app: Any, done_ttl: float | None) -> float:
    """Seconds for which a finished task is remembered; *done_ttl* is what the settings say."""
    if done_ttl is not None:
        return done_ttl
    visible = visibility_timeout(app)
    return REMEMBERED if math.isinf(visible) else max(REMEMBERED, 2 * visible)
