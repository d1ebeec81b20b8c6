"""The rules of :mod:`celery_dlock.core.machine` in Lua, as scripts that Redis runs whole.

They are kept as ``.lua`` files, a few of them to a script; their constants come from the Python
side, so that there is one place for each. A script is called by its digest. Who answers that it
does not know it (after a restart, a failover) is sent the text with the same arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Self

from celery_dlock.backends.change import REMEMBER_LOST
from celery_dlock.backends.redis_wire import ENDING_CODES, MODE_CODES
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import WINDOW, Cause, Ending, Mode
from celery_dlock.core.turns import CALL_AGAIN_FIRST, CALL_AGAIN_LAST
from celery_dlock.core.upkeep import CALL_ELSEWHERE, CALLS_BEFORE_DEAD

#: What redis-py sends: the name of a command, and what it is about.
Command = tuple[Any, ...]

RULES = ("names", "key", "edits", "turns")

_CONSTANTS = f"""\
local WINDOW = {WINDOW}
local CALL_AGAIN_FIRST = {CALL_AGAIN_FIRST}
local CALL_AGAIN_LAST = {CALL_AGAIN_LAST}
local REMEMBER_LOST = {REMEMBER_LOST}
local EXCLUSIVE, SHARED = '{MODE_CODES[Mode.EXCLUSIVE]}', '{MODE_CODES[Mode.SHARED]}'
local TIMED_OUT = '{ENDING_CODES[Ending.TIMED_OUT]}'
local DROPPED = '{ENDING_CODES[Ending.DROPPED]}'
local REVOKED = '{ENDING_CODES[Ending.REVOKED]}'
local RUNS_LOST = '{Cause.RUNS_LOST}'
local MAX_LOST_RUNS = {MAX_LOST_RUNS}
local CALLS_BEFORE_DEAD = {CALLS_BEFORE_DEAD}
local CALL_ELSEWHERE = {CALL_ELSEWHERE}
"""


def text_of(*names: str) -> str:
    """The text of one script, made of the named files in this order."""
    folder = files("celery_dlock.backends") / "lua"
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
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return cls(text, digest.encode())

    def on(self, keys: Sequence[str], arguments: Sequence[Any]) -> Command:
        """The command that runs it on *keys*, which all lie in one slot of a cluster."""
        return ("EVALSHA", self.digest, len(keys), *map(str.encode, keys), *arguments)


# The common case comes first, and without the rules.
_THE_REST = (*RULES[1:], "machine")

ENTER = Script.of("names", "claim", "free", *_THE_REST, "enter")
LEAVE = Script.of("names", "claim", "alone", *_THE_REST, "leave")
RENEW = Script.of(*RULES, "renew")
REAP = Script.of(*RULES, "reap")
SWEEP = Script.of(*RULES, "overdue", "sweep")
OVERDUE = Script.of(*RULES, "overdue", "look")
REAP_OVERDUE = Script.of(*RULES, "overdue", "reap_overdue")
UPKEEP = Script.of(*RULES, "upkeep")
PARKED = Script.of("names", "key", "parked")
PEEK = Script.of("names", "key", "peek")
HEADS = Script.of("names", "key", "heads")
NOTE = Script.of("note")
TIME = Script.with_text("return redis.call('TIME')")

_TEXTS = {
    script.digest: script.text
    for script in (
        *(ENTER, LEAVE, RENEW, REAP, SWEEP, OVERDUE, REAP_OVERDUE, UPKEEP, PARKED, PEEK, HEADS),
        *(NOTE, TIME),
    )
}


def in_full(command: Command) -> Command:
    """*command* with the text of its script, which Redis does not know yet."""
    return ("EVAL", _TEXTS[command[1]], *command[2:])


def key_of_command(command: Command) -> str | bytes:
    """The first key that *command* is about."""
    key: str | bytes = command[3] if command[0] == "EVALSHA" else command[1]
    return key
