"""Names for policies with their defaults, as ``on_contention=`` takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from celery_dlock.contention.base import Policy
from celery_dlock.contention.fail import Fail
from celery_dlock.contention.queue import Queue, Replace
from celery_dlock.contention.reschedule import Reschedule
from celery_dlock.contention.skip import Skip
from celery_dlock.contention.wait import Wait
from celery_dlock.core.checks import did_you_mean, quoted
from celery_dlock.errors import ConfigurationError

POLICIES: Mapping[str, Callable[[], Policy]] = {
    "reschedule": Reschedule,
    "skip": Skip,
    "fail": Fail,
    "wait": Wait,
    "queue": Queue,
    "replace": Replace,
}


def policy_named(policy: str | Policy) -> Policy:
    """The policy of that name with its defaults; an object that decides is taken as it is.

    Raises :exc:`~celery_dlock.ConfigurationError` for anything else, with the nearest name.
    """
    if isinstance(policy, str):
        if policy in POLICIES:
            return POLICIES[policy]()
        hint = did_you_mean(policy, POLICIES)
        raise ConfigurationError(f"on_contention={quoted(policy)} is no policy: {hint}")
    if isinstance(policy, type) or not isinstance(policy, Policy):
        what = "a name or an object with decide(contention)"
        raise ConfigurationError(f"on_contention= takes {what}, got {quoted(policy)}")
    return policy
