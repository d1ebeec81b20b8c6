"""What lasts is said when it begins, rarely after that, and when it is over."""

from __future__ import annotations

import pytest

from celery_dlock.core.outage import RARELY, Outage


def test_it_is_said_at_once_then_rarely_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    outage = Outage(lambda: now)
    outage.over("it is back")
    for second in range(int(2 * RARELY) + 1):
        outage.lasts("it is away: %s", second)
        now += 1
    outage.over("it is back")
    outage.over("it is back")
    outage.lasts("it is away: %s", "again")

    assert [record.getMessage() for record in caplog.records] == [
        "it is away: 0",
        "it is away: 300",
        "it is away: 600",
        "it is back, after 601 s",
        "it is away: again",
    ]
