"""The same for programs: names that stay, times in UTC as ISO 8601 writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery_dlock.core.state import Mode
from celery_dlock.inspection.overview import Held, InLine, Line


def line(found: Line, now: datetime) -> dict[str, Any]:
    """One key as it was *now*, by the store's clock."""
    return {
        "key": found.key,
        "holders": [holder(held, now) for held in found.holders],
        "called": list(found.called),
        "waiting": found.waiting,
        "oldest": when(found.oldest),
        "unreadable": found.unreadable or None,
    }


def holder(held: Held, now: datetime) -> dict[str, Any]:
    """One holder; a reader has no token."""
    return {
        "task_id": held.task_id,
        "owner": held.owner,
        "token": None if held.mode is Mode.SHARED else held.token,
        "mode": held.mode.value,
        "limit": held.limit,
        "since": when(held.since),
        "expires": when(held.expires),
        "lapsed": held.expires <= now,
    }


def in_line(found: InLine) -> dict[str, Any]:
    """One that waits."""
    return {
        "task_id": found.task_id,
        "task": found.task,
        "mode": found.mode.value,
        "parked": found.parked,
        "called": found.called,
        "arrived": when(found.arrived),
        "until": when(found.until),
        "ending": found.ending,
    }


def when(instant: datetime | None) -> str | None:
    """*instant* as a text."""
    return None if instant is None else instant.astimezone(UTC).isoformat()
