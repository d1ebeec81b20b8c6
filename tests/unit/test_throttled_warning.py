"""What lasts is said when it begins, rarely after that, and when it is over."""

from __future__ import annotations

import os

import pytest

from celery_dlock.locks.throttled_warning import (
    REPEAT_AFTER,
    ThrottledWarning,
    _Spokesman,
    speak_for_children,
)


def test_it_is_said_at_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_process_that_was_forked_leaves_it_to_the_one_that_speaks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Spokesman, "pid", 0)
    ThrottledWarning().warn("each for itself")
    speak_for_children()
    ThrottledWarning().warn("the spokesman")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    ThrottledWarning().warn("a child of it")

    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["each for itself", "the spokesman"]
