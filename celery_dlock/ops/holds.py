"""A person puts a key on hold, and ends that.

As with any action, what was shown is named, and nothing else is touched: a hold that another person
has put there meanwhile stays.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import uuid
from typing import Any

from celery_dlock.beat import leader
from celery_dlock.core.checks import duration, quoted
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import PutOnHold
from celery_dlock.errors import ConfigurationError
from celery_dlock.ops.actions import carry_out
from celery_dlock.ops.event_text import Clock
from celery_dlock.ops.overview import OnHold

logger = logging.getLogger("celery_dlock")

#: Seconds: who needs a key closed for longer than a week says so again.
LONGEST_HOLD = 7 * 86_400.0

#: Characters of the reason, and of who it is.
LONGEST_REASON, LONGEST_NAME = 200, 100


def this_person() -> str:
    """Who runs this program, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may know no name of its user
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def put_on_hold(app: Any, key: str, lasts: float, because: str, by: str, was: str = "") -> bool:
    """Keep *key* closed for *lasts* seconds; ``False`` if it is on another hold than it *was*.

    Raises :exc:`~celery_dlock.ConfigurationError` for what nobody can mean, and
    :exc:`~celery_dlock.BackendUnavailable`; whether it is on hold is then unknown.
    """
    lasts = duration("lasts", lasts)
    if lasts > LONGEST_HOLD:
        raise ConfigurationError(f"a key is on hold for 7 days at most, got {lasts:g} s")
    _check_line("because", because, LONGEST_REASON)
    _check_line("by", by, LONGEST_NAME)
    if key.startswith(leader.KEYS):
        raise ConfigurationError(f"a beat leads by {key!r}: such a key is not put on hold")
    name, lasts_for = uuid.uuid4().hex, max(1, round(lasts * SECOND))
    done = carry_out(app, PutOnHold(key, was, name, by, because, lasts_for))
    if done:
        logger.info("%r is on hold for %g s, by %s: %s", key, lasts, by, because)
    return done


def end_hold(app: Any, key: str, name: str) -> bool:
    """Let *key* open if it is on the hold *name*; ``False`` if on another one. Who waits is woken.

    Raises :exc:`~celery_dlock.BackendUnavailable`; whether it has ended is then unknown.
    """
    done = carry_out(app, PutOnHold(key, name, "", "", "", 0))
    if done:
        logger.info("%r is on hold no more, by an operator", key)
    return done


def sentence(hold: OnHold, clock: Clock) -> str:
    """What is said of a key that is on *hold*."""
    return f"on hold until {clock.tell(hold.until)}, by {hold.who}"


def _check_line(what: str, text: str, longest: int) -> None:
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise ConfigurationError(f"{what}= is a line of text, got {quoted(text)}")
    if len(text) > longest:
        raise ConfigurationError(f"{what}= has {longest} characters at most, got {len(text)}")
