"""An operator's action: one value that terminal, JSON, page and :mod:`celery_dlock.operate` render.

An action names what was shown, and touches nothing else: a key that has another holder by now is
left alone. The process that carries it out publishes the messages that it wakes.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_dlock.beat import leader
from celery_dlock.core.operations import Operation
from celery_dlock.errors import ConfigurationError, DLockError
from celery_dlock.ops.overview import KeyDetails
from celery_dlock.ops.plain_text import shown
from celery_dlock.runtime import runtime
from celery_dlock.stores.unreadable import UnreadableKey

V = TypeVar("V")

logger = logging.getLogger("celery_dlock")


class NotSoAnyMore(DLockError):
    """What an action names has gone or changed; nothing was done. The text says so to people."""


@dataclass(frozen=True, slots=True)
class Field:
    """What a person fills in: a line of up to ``longest`` characters, or one of so many seconds."""

    name: str
    label: str
    hint: str = ""
    longest: int = 0
    seconds: tuple[int, ...] = ()

    def read(self, form: Mapping[str, str]) -> str | int:
        """What *form* says; 0 for a number of seconds that it does not offer."""
        text = form.get(self.name, "").strip()
        return next((n for n in self.seconds if str(n) == text), 0) if self.seconds else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What a person may do to a lock, and what is said of it before and afterwards.

    ``names`` is exactly what it is done to, and what finds it again by ``name``. ``order`` is a
    clause such as "take order:42 from task pay-1"; ``facts`` is what the person is shown of it.
    ``done`` and ``nothing`` are the sentences for what came of it. ``do`` takes the person, and
    returns whether that was still to be done.
    """

    name: str
    title: str
    names: Mapping[str, str]
    order: str
    done: str
    nothing: str
    do: Callable[[str], bool]
    facts: Mapping[str, Any]
    consequences: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()

    @property
    def question(self) -> str:
        return f"{self.order[0].upper()}{self.order[1:]}?"

    def carry_out(self, by: str) -> bool:
        """Do it for the person *by*; ``False`` if what it names is not so any more.

        Raises :exc:`~celery_dlock.BackendUnavailable`; whether it was done is then unknown.
        """
        done = self.do(by)
        if done:
            logger.info("an action by %s: %s", by, self.done)
        return done


def apply(app: Any, operation: Operation[V]) -> V:
    """Apply *operation*, and publish the messages that it wakes; its verdict."""
    locks = runtime(app)
    reply = locks.existing_store().apply(operation)
    locks.wake(reply.wakes)
    return reply.verdict


def readable(app: Any, key: str) -> KeyDetails:
    """How *key* stands. Raises :exc:`UnreadableKey` if the store cannot read that key."""
    details = KeyDetails.of(app, key)
    if details.line.unreadable:
        why = f"the lock store answers, and cannot read {shown(key)}: {details.line.unreadable}"
        raise UnreadableKey(why)
    return details


def check_no_beat(key: str) -> None:
    """Raise :exc:`~celery_dlock.ConfigurationError` for a key that beats lead by."""
    if key.startswith(leader.KEYS):
        raise ConfigurationError(f"{shown(key)} is the key of a beat: use `dlock beat --step-down`")


def this_person() -> str:
    """Who runs this program, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may know no name of its user
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
