"""Whatever stands in a setting or an option: it is taken, or refused in a short sentence."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.core.access import Limit
from celery_dlock.core.backoff import FullJitter
from celery_dlock.core.checks import LONGEST_DURATION, SHORTEST_DURATION, duration
from celery_dlock.errors import ConfigurationError
from celery_dlock.policies.shipped import Queue, Replace, Reschedule, Wait, policy_named
from celery_dlock.runtime import runtime
from celery_dlock.settings import _CHECKS, Settings
from celery_dlock.tasks.block import lock
from tests.services.hostile import PASSWORD, TEXTS, VALUES, examples, refused

#: What takes seconds, beside the settings.
DURATIONS: dict[str, Any] = {
    "base": lambda value: FullJitter(base=value),
    "cap": lambda value: FullJitter(cap=value),
    "Queue": lambda value: Queue(max_wait=value),
    "Replace": lambda value: Replace(max_wait=value),
    "Reschedule": lambda value: Reschedule(max_wait=value),
    "Wait": lambda value: Wait(timeout=value),
}


@pytest.mark.parametrize("name", sorted(_CHECKS.keys() - {"url", "sinks", "history"}))
@examples(60)
@given(value=VALUES)
def test_any_value_of_a_setting(name: str, value: Any) -> None:
    app = Celery("shop", set_as_current=False, broker="memory://")
    app.conf.update({"dlock_url": "memory://", f"dlock_{name}": value})
    try:
        runtime(app)
    except ConfigurationError as exc:
        refused(exc)


@pytest.mark.parametrize("name", ["url", "sinks", "history"])
@examples(100)
@given(value=VALUES)
def test_any_value_of_a_setting_that_names_what_is_to_be_opened(name: str, value: Any) -> None:
    try:
        Settings.from_conf({"dlock_url": "memory://", f"dlock_{name}": value})
    except ConfigurationError as exc:
        refused(exc)


@examples(100)
@given(name=TEXTS, value=VALUES)
def test_any_name_of_a_setting(name: str, value: Any) -> None:
    conf = {"dlock_url": f"redis://:{PASSWORD}@h", f"dlock_{name}x": value}
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_conf(conf)
    refused(caught.value)


@pytest.mark.parametrize("name", sorted(DURATIONS))
@examples(40)
@given(value=VALUES)
def test_any_value_of_an_option_of_a_policy(name: str, value: Any) -> None:
    try:
        DURATIONS[name](value)
    except ConfigurationError as exc:
        refused(exc)


@examples(100)
@given(value=VALUES)
def test_any_policy(value: Any) -> None:
    try:
        policy_named(value)
    except ConfigurationError as exc:
        refused(exc)


@pytest.mark.parametrize("name", ["ttl", "timeout", "n", "cooldown"])
@examples(40)
@given(value=VALUES)
def test_any_option_of_a_lock(name: str, value: Any) -> None:
    app = Celery("shop", set_as_current=False, broker="memory://")
    app.conf.dlock_url = "memory://"
    given: dict[str, Any] = {"n": 1, name: value}
    key = Limit("order:42", given.pop("n"), given.pop("cooldown", None))
    try:
        with lock(key, app=app, **given):
            pass
    except ConfigurationError as exc:
        refused(exc)


@given(st.floats(min_value=SHORTEST_DURATION, max_value=LONGEST_DURATION))
def test_from_a_millisecond_to_a_hundred_years_all_is_a_duration(seconds: float) -> None:
    assert duration("ttl", seconds) == seconds


@pytest.mark.parametrize(
    ("seconds", "allowed"),
    [
        *((short, r"0\.001 s or more") for short in (0, -1, 1e-6)),
        *((long, "100 years or less") for long in (3.2e9, 10**400, float("inf"))),
        (float("nan"), "a number of seconds"),
    ],
)
def test_what_is_shorter_or_longer_is_none(seconds: float, allowed: str) -> None:
    with pytest.raises(ConfigurationError, match=f"ttl must be {allowed}"):
        duration("ttl", seconds)


def test_zero_seconds_are_a_duration_only_where_zero_means_off() -> None:
    assert duration("timeout", 0, zero=True) == 0.0
    assert duration("timeout", 1e-9, zero=True) == 1e-9  # what is left of somebody's deadline
    with pytest.raises(ConfigurationError, match="0 s or more"):
        duration("timeout", -1, zero=True)
