"""Where a URL leads, without who one is there."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit


def place_of(url: str) -> str:
    """Host and path of *url*."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path


def broker_url(conf: Any) -> str:
    """The broker's URL as it was given, the first of several; Celery's own where there is none."""
    given = conf.broker_read_url or "amqp://"
    first = given if isinstance(given, str) else given[0]
    return str(first).partition(";")[0]
