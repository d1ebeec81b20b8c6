"""What lasts is said when it begins, rarely after that, and when it is over."""

from __future__ import annotations

import pytest

from celery_dlock.locks.throttled_warning import (
    REPEAT_AFTER,
    ThrottledWarning,
)


def test_it_is_said_at_once_then_rarely_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    warning = ThrottledWarning(lambda: now)
    warning.resolved("it is back")
    for second in range(int(2 * REPEAT_AFTER) + 1):
        warning.warn("it is away: %s", second)
        now += 1
    warning.resolved("it is back")
    warning.resolved("it is back")
    warning.warn("it is away: %s", "again")

    assert [record.getMessage() for record in caplog.records] == [
        "it is away: 0",
        "it is away: 300",
        "it is away: 600",
        "it is back, after 601 s",
        "it is away: again",
    ]
