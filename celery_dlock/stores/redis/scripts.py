"""The rules of :mod:`celery_dlock.core.machine` in Lua, as scripts that Redis runs whole.

They are kept as ``.lua`` files, a few of them to a script; their constants come from the Python
side, so that there is one place for each. A script is called by its digest. A server that
does not know it (after a restart, a failover) is sent the text with the same arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Self

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import (
    Cancel,
    DeadLetter,
    Discard,
    Enter,
    HandBack,
    Leave,
    Operation,
    Postpone,
    PutOnHold,
    Reap,
    Replay,
)
from celery_dlock.core.state import (
    COOLING,
    DEBOUNCING,
    GAVE_WAY,
    ON_HOLD,
    STRANGER_RESERVED,
    WAKES_RESERVED,
    WINDOW,
    Cause,
    Ending,
    Mode,
)
from celery_dlock.core.turns import UNATTENDED, WAKE_AGAIN_FIRST, WAKE_AGAIN_LAST
from celery_dlock.core.upkeep import WAKE_ELSEWHERE, WAKES_BEFORE_DEAD
from celery_dlock.stores.change import REMEMBER_LOST
from celery_dlock.stores.redis import wire
from celery_dlock.stores.redis.wire import ENDING_CODES, MODE_CODES

#: What redis-py sends: the name of a command, and what it is about.
Command = tuple[Any, ...]

RULES = ("clock", "names", "line", "key", "edits", "turns")

_CONSTANTS = f"""\
local WINDOW = {WINDOW}
local WAKE_AGAIN_FIRST = {WAKE_AGAIN_FIRST}
local WAKE_AGAIN_LAST = {WAKE_AGAIN_LAST}
local UNATTENDED = {UNATTENDED}
local WAKES_RESERVED, STRANGER_RESERVED = {WAKES_RESERVED}, {STRANGER_RESERVED}
local REMEMBER_LOST = {REMEMBER_LOST}
local EXCLUSIVE, SHARED = '{MODE_CODES[Mode.EXCLUSIVE]}', '{MODE_CODES[Mode.SHARED]}'
local COOLING, DEBOUNCING, ON_HOLD = '{COOLING}', '{DEBOUNCING}', '{ON_HOLD}'
local GAVE_WAY = {GAVE_WAY}
local TIMED_OUT = '{ENDING_CODES[Ending.TIMED_OUT]}'
local DROPPED = '{ENDING_CODES[Ending.DROPPED]}'
local REVOKED = '{ENDING_CODES[Ending.REVOKED]}'
local RUNS_LOST = '{Cause.RUNS_LOST}'
local MAX_LOST_RUNS = {MAX_LOST_RUNS}
local WAKES_BEFORE_DEAD = {WAKES_BEFORE_DEAD}
local WAKE_ELSEWHERE = {WAKE_ELSEWHERE}
"""


#: The text of each script, by its digest.
_TEXTS: dict[bytes, str] = {}


def text_of(*names: str) -> str:
    """The text of one script, made of the named files in this order."""
    folder = files("celery_dlock.stores.redis") / "lua"
    texts = ((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names)
    return "\n".join((_CONSTANTS, *texts))


@dataclass(frozen=True, slots=True)
class Script:
    """One script, and the digest by which Redis knows it."""

    text: str
    digest: bytes

    @classmethod
    def of(cls, *names: str) -> Self:
        return cls.with_text(text_of(*names))

    @classmethod
    def with_text(cls, text: str) -> Self:
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
        _TEXTS[digest] = text
        return cls(text, digest)

    def on(self, keys: Sequence[str], arguments: Sequence[Any]) -> Command:
        """The command that runs it on *keys*, which all lie in one slot of a cluster."""
        return ("EVALSHA", self.digest, len(keys), *map(str.encode, keys), *arguments)


# The common cases come first, and without the rules.
_SIMPLE, _THE_REST = ("line", "simple"), (*RULES[3:], "machine")

ENTER = Script.of("clock", "names", "claim", "free", *_SIMPLE, "behind", *_THE_REST, "enter")
LEAVE = Script.of("clock", "names", "claim", "alone", *_SIMPLE, "hand_on", *_THE_REST, "leave")
POSTPONE = Script.of("clock", "names", "claim", *RULES[2:], "postpone")
RENEW = Script.of(*RULES, "renew")
REAP = Script.of(*RULES, "reap")
SWEEP = Script.of(*RULES, "overdue", "sweep")
OVERDUE = Script.of(*RULES, "overdue", "look")
REAP_OVERDUE = Script.of(*RULES, "overdue", "reap_overdue")
UPKEEP = Script.of(*RULES, "upkeep")
MESSAGE = Script.of("clock", "names", "line", "key", "message")
PEEK = Script.of("clock", "names", "line", "key", "peek")
POSITION = Script.of("clock", "names", "line", "key", "position")
HEADS = Script.of("clock", "names", "line", "key", "heads")
NOTE = Script.of("note")
SWAP = Script.of("clock", "swap")
TIME = Script.with_text("return redis.call('TIME')")


_DOES = {Cancel: "cancel", HandBack: "hand_back", Replay: "replay"}


def of(operation: Operation[object]) -> tuple[Script, list[Any]]:
    """The script that has the rule of *operation*, and what it is told after the time."""
    match operation:
        case Enter(claim=claim, message=message):
            return ENTER, wire.claim_arguments(claim, message, named=True)
        case Leave(claim=claim, outcome=outcome, message=message):
            return LEAVE, wire.leave_arguments(claim, outcome, message)
        case Postpone():
            return POSTPONE, wire.postpone_arguments(operation)
        case Reap():
            return REAP, []
        case Cancel(task=task) | HandBack(task=task) | Replay(task=task):
            return UPKEEP, [task, _DOES[type(operation)], ""]
        case DeadLetter(task=task, cause=cause):
            return UPKEEP, [task, "dead_letter", cause.value]
        case Discard(task=task, done_ttl=done_ttl):
            return UPKEEP, [task, "discard", done_ttl]
        case PutOnHold(was=was, name=name, by=by, because=because, lasts=lasts):
            return UPKEEP, ["", "hold", was, name, by, because, lasts]
        case _:
            raise TypeError(f"there is no script for {operation!r}")


def in_full(command: Command) -> Command:
    """*command* with the text of its script, which Redis does not know yet."""
    return ("EVAL", _TEXTS[command[1]], *command[2:])


def packed(command: Command) -> bytes:
    """*command* as it goes over the wire."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        value = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


def key_of_command(command: Command) -> str | bytes:
    """The first key that *command* is about."""
    key: str | bytes = command[3] if command[0] == "EVALSHA" else command[1]
    return key
