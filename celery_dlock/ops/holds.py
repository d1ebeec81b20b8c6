"""A person puts a key on hold, and ends that; a hold that another person has put there stays."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from celery_dlock.core.checks import duration, quoted
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import PutOnHold
from celery_dlock.core.sentences import count
from celery_dlock.errors import ConfigurationError
from celery_dlock.ops.action import Action, Field, NotSoAnyMore, apply, check_no_beat, readable
from celery_dlock.ops.event_text import Clock, lasting
from celery_dlock.ops.overview import KeyDetails, OnHold
from celery_dlock.ops.plain_text import one_line, shown

#: Seconds: who needs a key closed for longer than a week says so again.
LONGEST_HOLD = 7 * 86_400.0

#: Characters of the reason, and of who it is.
LONGEST_REASON, LONGEST_NAME = 200, 100

#: What a person fills in on the page.
FIELDS = (
    Field("lasts", "For", seconds=(900, 3600, 4 * 3600, 24 * 3600)),
    Field("because", "Because", "what all who ask are told", LONGEST_REASON),
)

#: What becomes of a key that is put on hold.
CLOSED = (
    "Nobody new gets the key. Whoever has it goes on.",
    "Who waits is told who wants it and why, and this time does not count for its max_wait.",
    "It ends by itself, or when somebody ends it. A hold that is there is replaced.",
)


def hold(
    app: Any,
    key: str,
    was: str = "",
    *,
    lasts: float = 3600.0,
    because: str = "-",
    by: str = "-",
) -> Action:
    """Keep *key* closed for *lasts* seconds, for the person *by*, instead of the hold that *was*.

    The page asks with the defaults what is to be filled in.

    Raises :exc:`~celery_dlock.ConfigurationError` for what nobody can mean.
    """
    lasts = duration("lasts", lasts)
    if lasts > LONGEST_HOLD:
        raise ConfigurationError(f"a key is on hold for 7 days at most, got {lasts:g} s")
    _check_line("because", because, LONGEST_REASON)
    _check_line("by", by, LONGEST_NAME)
    check_no_beat(key)
    details = _still(app, key, was)
    lasts_for = max(1, round(lasts * SECOND))
    return Action(
        name="hold",
        title="Put the key on hold",
        names={"key": key, "was": was},
        order=f"keep {shown(key)} closed for {lasting(lasts)}{_so_far(details)}",
        facts=_facts(details),
        consequences=CLOSED,
        done=f"{shown(key)} is on hold for {lasting(lasts)}, by {one_line(f'{by}: {because}')}",
        nothing=_another(key),
        do=lambda _: apply(app, PutOnHold(key, was, uuid.uuid4().hex, by, because, lasts_for)),
        fields=FIELDS,
    )


def end_hold(app: Any, key: str, was: str) -> Action:
    """Let *key* open if it is still on the hold that *was*; who waits is woken."""
    details = _still(app, key, was)
    return Action(
        name="end_hold",
        title="End the hold",
        names={"key": key, "was": was},
        order=f"end the hold of {shown(key)}{_so_far(details)}",
        facts=_facts(details),
        consequences=("The key is free for the next task.",),
        done=f"{shown(key)} is on hold no more",
        nothing=_another(key),
        do=lambda _: apply(app, PutOnHold(key, was, "", "", "", 0)),
    )


def _another(key: str) -> str:
    return f"Nothing was done: the hold of {shown(key)} is another one by now"


def _still(app: Any, key: str, was: str) -> KeyDetails:
    """How *key* stands, if it is on the hold that *was*, or on none."""
    details = readable(app, key)
    current = details.line.on_hold(details.now)
    if was != (current.name if current else ""):
        raise NotSoAnyMore(_another(key))
    return details


def sentence(hold: OnHold, clock: Clock) -> str:
    """What is said of a key that is on *hold*."""
    return f"on hold until {clock.tell(hold.until)}, by {hold.who}"


def _facts(details: KeyDetails) -> Mapping[str, Any]:
    hold, facts = details.line.on_hold(details.now), {"key": details.line.key}
    if hold is None:
        return facts
    about = {"on_hold_by": hold.by, "because": hold.because}
    return {**facts, **about, "since": hold.since, "until": hold.until}


def _so_far(details: KeyDetails) -> str:
    """In brackets: the hold that is there, who goes on, and who waits."""
    line, hold = details.line, details.line.on_hold(details.now)
    so_far = []
    if hold is not None:
        left = lasting((hold.until - details.now).total_seconds())
        so_far.append(f"on hold for {left} more, by {one_line(hold.who)}")
    if line.holders:
        so_far.append(f"{count(len(line.holders), 'holder goes', 'holders go')} on")
    if line.waiting:
        so_far.append(count(line.waiting, "task waits", "tasks wait"))
    return f" ({'; '.join(so_far)})" if so_far else ""


def _check_line(what: str, text: str, longest: int) -> None:
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise ConfigurationError(f"{what}= is a line of text, got {quoted(text)}")
    if len(text) > longest:
        raise ConfigurationError(f"{what}= has {longest} characters at most, got {len(text)}")
