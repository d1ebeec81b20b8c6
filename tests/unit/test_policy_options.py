"""What a policy is given is looked at when it is made, not when the first task meets a held key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import ConfigurationError, FullJitter, Queue, Replace, Reschedule, Wait


@pytest.mark.parametrize(
    ("policy", "option", "value"),
    [
        (Reschedule, "backoff", 5),
        (Reschedule, "backoff", FullJitter),
        (Reschedule, "max_attempts", "3"),
        (Reschedule, "max_attempts", -1),
        (Reschedule, "max_wait", "1h"),
        (Reschedule, "max_wait", -1),
        (Queue, "max_wait", "1h"),
        (Replace, "max_wait", "1h"),
        (Replace, "running", "yes"),
        (Wait, "timeout", "5"),
        (Wait, "timeout", float("inf")),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(
    policy: Callable[..., Any], option: str, value: Any
) -> None:
    with pytest.raises(ConfigurationError, match=option):
        policy(**{option: value})


def test_no_wait_at_all_and_wait_without_end_may_be_meant() -> None:
    assert Reschedule(max_attempts=0, max_wait=0).max_wait == 0
    assert Reschedule(max_wait=None).max_attempts is None
    assert Replace(max_wait=None).queueing().max_wait is None
    assert Wait(timeout=0).timeout == 0
