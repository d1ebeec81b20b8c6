"""How long a broker waits for an acknowledgement before it delivers a message again.

A message with a countdown is not acknowledged before it is due. One that waits for longer than
that is delivered again while it waits, and again, without end (celery/celery#3270, #4400); and
each copy that meets the running task would leave a copy of its own.
"""

from __future__ import annotations

import math
from typing import Any

from celery_dlock.core.checks import duration

#: What kombu takes where ``broker_transport_options`` says nothing, in seconds.
_USUAL = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "sqs": 1800.0}


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
